"""Provider URLs: what we write we read, what others write we keep, what nobody can use is refused."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_registry import (
    Hardware,
    MalformedUrl,
    Node,
    NodeState,
    ServiceKey,
    parse_provider_url,
    provider_url,
)
from steelyard_registry.url import MAX_URL_BYTES, consumer_url, node_name, parse_node_name

WORDS = st.text(max_size=20)
NAMES = st.text(min_size=1, max_size=20)
HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,20}", fullmatch=True),
)
NUMBERS = st.none() | st.floats(min_value=0, max_value=1e9)
CONSTANT = {"dubbo": "2.0.2", "dynamic": "true", "side": "provider"}
NODES = st.builds(
    Node,
    interface=NAMES,
    host=HOSTS,
    port=st.integers(1, 65535),
    version=WORDS,
    group=WORDS,
    application=WORDS,
    methods=st.lists(NAMES, max_size=4).map(tuple),
    weight=st.integers(0, 10**9),
    state=st.sampled_from(NodeState),
    started_at_ms=st.integers(0, 10**15),
    zone=WORDS,
    hardware=st.builds(
        Hardware,
        kind=NAMES,
        model=WORDS,
        cores=NUMBERS,
        quota=NUMBERS,
        memory_bytes=st.none() | st.integers(0, 2**50),
        accelerators=st.lists(NAMES, max_size=3).map(tuple),
    ),
    tags=st.dictionaries(
        NAMES | st.sampled_from(["weight", "tag.weight", "tag.tag.hw.kind", "tag.x", "methods", "service", "a=b"]),
        WORDS,
        max_size=5,
    ).map(lambda tags: MappingProxyType({key: value for key, value in tags.items() if CONSTANT.get(key) != value})),
)


@given(NODES)
def test_a_node_survives_the_round_trip(node: Node) -> None:
    assert parse_provider_url(provider_url(node)) == node
    assert parse_node_name(node_name(node)) == node


@given(NODES)
def test_a_node_name_is_a_valid_child_name(node: Node) -> None:
    name = node_name(node)
    assert name.isascii()
    assert name.isprintable()
    assert "/" not in name
    assert " " not in name


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: "tri://h:1/" + raw.decode("latin-1")))
def test_whatever_comes_is_a_node_or_a_malformed_url(text: str) -> None:
    for parse in (parse_provider_url, parse_node_name):
        try:
            node = parse(text)
        except MalformedUrl:
            continue
        assert parse_provider_url(provider_url(node)) == node


def test_the_written_form_is_dubbos() -> None:
    node = Node(
        interface="ads.Ctr",
        host="10.0.0.7",
        port=20880,
        version="1.0.0",
        group="blue",
        application="ads",
        methods=("predict", "explain"),
        started_at_ms=1700000000000,
        zone="a",
        hardware=Hardware(
            kind="gpu", model="Xeon E5", cores=8.0, quota=2.5, memory_bytes=1024, accelerators=("T4", "T4")
        ),
        tags={"pool": "ads"},
    )
    assert provider_url(node) == (
        "tri://10.0.0.7:20880/ads.Ctr?application=ads&dubbo=2.0.2&dynamic=true&group=blue&hw.accelerators=T4,T4"
        "&hw.cores=8&hw.kind=gpu&hw.memory=1024&hw.model=Xeon%20E5&hw.quota=2.5&interface=ads.Ctr"
        "&methods=predict,explain&pool=ads&side=provider&state=ready&timestamp=1700000000000&version=1.0.0"
        "&weight=100&zone=a"
    )
    assert node_name(node).startswith("tri%3A%2F%2F10.0.0.7%3A20880%2Fads.Ctr%3Fapplication%3Dads%26")


def test_dubbo_javas_url_keeps_its_keys() -> None:
    text = (
        "tri://192.168.0.9:50052/com.demo.Greeter?anyhost=true&application=demo&background=false&deprecated=false"
        "&dubbo=2.0.2&dynamic=true&generic=false&interface=com.demo.Greeter&methods=greet,greetStream&pid=77"
        "&prefer.serialization=hessian2,fastjson2&release=3.2.4&service-name-mapping=true&side=provider"
        '&timestamp=1690000000000&extra={"a":1}'
    )
    node = parse_provider_url(text)
    assert (node.interface, node.methods, node.started_at_ms) == (
        "com.demo.Greeter",
        ("greet", "greetStream"),
        1690000000000,
    )
    assert node.tags["release"] == "3.2.4"
    assert node.tags["prefer.serialization"] == "hessian2,fastjson2"
    written = provider_url(node)
    assert set(text.partition("?")[2].split("&")) <= set(written.partition("?")[2].split("&"))


def test_dubbo_pythons_url_has_neither_path_nor_interface() -> None:
    node = parse_provider_url("tri://10.1.1.1:50051?service=demo.Echo")
    assert (node.interface, node.address) == ("demo.Echo", "10.1.1.1:50051")
    assert node.tags["service"] == "demo.Echo"


def test_a_path_that_is_not_the_interface_is_kept() -> None:
    text = "tri://10.1.1.1:50051/context/demo.Echo?interface=demo.Echo"
    node = parse_provider_url(text)
    assert node.interface == "demo.Echo"
    assert provider_url(node).startswith("tri://10.1.1.1:50051/context/demo.Echo?")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("tri://[fd00::7]:20880/a.B", "fd00::7"),
        ("tri://fd00:0:0:0:0:0:0:7:20880/a.B", "fd00:0:0:0:0:0:0:7"),
        ("tri://[fe80::1%eth0]:20880/a.B", "fe80::1%eth0"),
    ],
)
def test_ipv6_with_and_without_brackets(text: str, host: str) -> None:
    node = parse_provider_url(text)
    assert (node.host, node.port) == (host, 20880)
    assert node.address == f"[{host}]:20880"
    assert parse_provider_url(provider_url(node)) == node


def test_java_writes_a_blank_as_plus_in_names() -> None:
    assert parse_node_name("tri%3A%2F%2Fh%3A1%2Fa.B%3Fzone%3Dnorth+west").zone == "north west"
    assert parse_provider_url("tri://h:1/a.B?version=1.0+build").version == "1.0+build"


def test_of_two_equal_keys_the_last_wins() -> None:
    assert parse_provider_url("tri://h:1/a.B?zone=a&zone=b").zone == "b"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no scheme"),
        ("not a url", "has no scheme"),
        ("dubbo://h:1/a.B", "scheme 'dubbo' cannot be called; known: grpc, tri"),
        ("empty://h:1/a.B", "scheme 'empty' cannot be called"),
        ("tri://h/a.B", "has no port"),
        ("tri://h:/a.B", "has no port"),
        ("tri://h:0/a.B", "port 0 is not in 1..65535"),
        ("tri://h:70000/a.B", "port 70000 is not in 1..65535"),
        ("tri://h:x/a.B", "has no port"),
        ("tri://:1/a.B", "host '' is neither"),
        ("tri://a b:1/a.B", "host 'a b' is neither"),
        ("tri://a\x00b:1/a.B", "is neither a name nor an IP address"),
        ("tri://:::::1/a.B", "is not an IPv6 address"),
        ("tri://h:1", "names no interface"),
        ("tri://h:1/?weight=1", "names no interface"),
        ("tri://h:1/a.B?weight=-1", "weight='-1' is not a whole number"),
        ("tri://h:1/a.B?weight=1e3", "weight='1e3' is not a whole number"),
        ("tri://h:1/a.B?timestamp=yesterday", "timestamp='yesterday'"),
        ("tri://h:1/a.B?hw.cores=nan", "hw.cores='nan' is not a number >= 0"),
        ("tri://h:1/a.B?hw.quota=-1", "hw.quota='-1' is not a number >= 0"),
        ("tri://h:1/a.B?hw.memory=4GB", "hw.memory='4GB'"),
        ("tri://h:1/a.B?state=dancing", "state='dancing' is not one of starting, "),
        ("tri://h:1/a.B?x=" + "y" * MAX_URL_BYTES, "more than 65536 bytes"),
    ],
)
def test_a_broken_url_says_what_is_broken(text: str, reason: str) -> None:
    with pytest.raises(MalformedUrl) as caught:
        parse_provider_url(text)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tri%3A%2F%2Fh%3A1%2Fa.B%3Fzone%3D%zz", "broken percent escape"),
        ("tri%3A%2F%2Fh%3A1%2Fa.B%", "broken percent escape"),
        ("tri%3A%2F%2Fh%3A1%2F%FF%FE", "is not UTF-8"),
        ("a" * (MAX_URL_BYTES + 1), "more than 65536 bytes"),
        ("%41" * MAX_URL_BYTES, "more than 65536 bytes"),
    ],
)
def test_a_broken_name_says_what_is_broken(name: str, reason: str) -> None:
    with pytest.raises(MalformedUrl) as caught:
        parse_node_name(name)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "node",
    [
        Node(interface="", host="h", port=1),
        Node(interface="a.B", host="", port=1),
        Node(interface="a.B", host="a/b", port=1),
        Node(interface="a.B", host="h", port=0),
        Node(interface="a.B", host="h", port=1, weight=-5),
        Node(interface="a.B", host="h", port=1, protocol="dubbo"),
        Node(interface="a.B", host="h", port=1, hardware=Hardware(cores=float("inf"))),
        Node(interface="a.B", host="h", port=1, tags={"x": "y" * MAX_URL_BYTES}),
    ],
)
def test_a_node_that_could_not_be_read_back_is_not_written(node: Node) -> None:
    with pytest.raises(MalformedUrl):
        provider_url(node)


def test_the_consumer_url_names_the_service_and_who_asks() -> None:
    service = ServiceKey(interface="ads.Ctr", version="1.0.0", group="*")
    assert consumer_url(service, host="fd00::1", pid=42, started_at_ms=7, application="web") == (
        "consumer://[fd00::1]/ads.Ctr?application=web&category=consumers&check=false&dubbo=2.0.2&group=*"
        "&interface=ads.Ctr&pid=42&side=consumer&timestamp=7&version=1.0.0"
    )


# Put together from the forms that Dubbo's documentation and its clients' issue threads show; addresses are changed.
JAVA = "org.apache.dubbo.demo.GreeterService"
RECORDED = {
    "Java 3.2, encoded as a name": (
        "tri%3A%2F%2F192.168.1.103%3A50051%2Forg.apache.dubbo.demo.GreeterService%3Fapplication%3Ddemo-provider"
        "%26background%3Dfalse%26category%3Dproviders%26deprecated%3Dfalse%26dubbo%3D2.0.2%26dynamic%3Dtrue"
        "%26environment%3Dproduct%26executor-management-mode%3Disolation%26file-cache%3Dtrue%26generic%3Dfalse"
        "%26group%3Dgreeting%26interface%3Dorg.apache.dubbo.demo.GreeterService%26methods%3DsayHello%2CsayHelloAsync"
        "%26pid%3D36308%26prefer.serialization%3Dfastjson2%2Chessian2%26release%3D3.2.0%26revision%3D1.0.0"
        "%26service-name-mapping%3Dtrue%26side%3Dprovider%26timestamp%3D1680000000123%26version%3D1.0.0%26weight%3D50",
        Node(
            interface=JAVA,
            host="192.168.1.103",
            port=50051,
            group="greeting",
            version="1.0.0",
            application="demo-provider",
            methods=("sayHello", "sayHelloAsync"),
            started_at_ms=1680000000123,
            weight=50,
            tags={
                "background": "false",
                "category": "providers",
                "deprecated": "false",
                "environment": "product",
                "executor-management-mode": "isolation",
                "file-cache": "true",
                "generic": "false",
                "pid": "36308",
                "prefer.serialization": "fastjson2,hessian2",
                "release": "3.2.0",
                "revision": "1.0.0",
                "service-name-mapping": "true",
            },
        ),
    ),
    "Java, static (not dynamic), with a contextpath": (
        "tri://10.20.153.10:50051/api/com.foo.BarService?anyhost=true&dynamic=false&dubbo=2.0.2&interface=com.foo.BarService"
        "&methods=*&side=provider&timestamp=1700000000000",
        Node(
            interface="com.foo.BarService",
            host="10.20.153.10",
            port=50051,
            methods=("*",),
            started_at_ms=1700000000000,
            tags={"anyhost": "true", "dynamic": "false", "dubbo.path": "api/com.foo.BarService"},
        ),
    ),
    "Java on IPv6, without brackets": (
        "tri%3A%2F%2F2001%3Adb8%3A0%3A0%3A0%3A0%3A0%3A7%3A50051%2Fcom.foo.BarService%3Fversion%3D2.0",
        Node(interface="com.foo.BarService", host="2001:db8:0:0:0:0:0:7", port=50051, version="2.0"),
    ),
    "Java with a user and a blank in a value": (
        "tri%3A%2F%2Fadmin%3Asecret%40demo.host_1%3A50051%2Fcom.foo.BarService%3Fowner%3Da+b%26key%3D",
        Node(interface="com.foo.BarService", host="demo.host_1", port=50051, tags={"owner": "a b", "key": ""}),
    ),
    "Go 3.0": (
        "tri%3A%2F%2F172.17.0.3%3A20000%2Fgreet.GreetService%3Fapp.version%3D1%26application%3Ddubbo.io%26bean.name%3D"
        "GreetServer%26cluster%3Dfailover%26group%3Ddubbo-go%26interface%3Dgreet.GreetService%26loadbalance%3Drandom"
        "%26message_size%3D4%26methods%3DGreet%26release%3Ddubbo-golang-3.0.4%26serialization%3Dprotobuf"
        "%26timestamp%3D1695208370%26version%3D3.0.1%26warmup%3D100%26weight%3D",
        Node(
            interface="greet.GreetService",
            host="172.17.0.3",
            port=20000,
            group="dubbo-go",
            version="3.0.1",
            application="dubbo.io",
            methods=("Greet",),
            started_at_ms=1695208370,
            tags={
                "app.version": "1",
                "bean.name": "GreetServer",
                "cluster": "failover",
                "loadbalance": "random",
                "message_size": "4",
                "release": "dubbo-golang-3.0.4",
                "serialization": "protobuf",
                "warmup": "100",
            },
        ),
    ),
}


@pytest.mark.parametrize("form", RECORDED)
def test_recorded_forms_of_dubbo_parse_to_the_right_node(form: str) -> None:
    text, expected = RECORDED[form]
    found = parse_node_name(text) if "%3A" in text else parse_provider_url(text)
    assert found == replace(expected, tags=MappingProxyType(dict(expected.tags)))
    assert parse_provider_url(provider_url(found)) == found
