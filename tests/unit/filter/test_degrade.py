"""A fallback answers when the cluster cannot, never for the caller's own fault, and steps back by itself."""

import asyncio
from typing import Any

import pytest

from steelyard import errors
from steelyard.balance import Dice
from steelyard.filter import Switches, degrade
from steelyard.filter.degrade import LastGoodReplies
from steelyard.guard import Admission, Protection
from steelyard.model import Invocation, MethodSpec, Parameter, Reply, ServiceSpec
from steelyard.service import LAST_GOOD_REPLY


class Cluster:
    """An invoker that answers or fails as told."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.body = b"good"

    async def __call__(self, invocation: Invocation) -> Reply:
        if self.error is not None:
            raise self.error
        return Reply(body=self.body)


def call(body: bytes = b"question", args: tuple[Any, ...] = (7,)) -> Invocation:
    return Invocation("ads.Ctr", "predict", args, body)


def stacked(cluster: Cluster, **facts: Any) -> Any:
    spec = ServiceSpec(
        name="ads.Ctr", methods={"predict": MethodSpec(name="predict", parameters=(Parameter("user_id"),), **facts)}
    )
    filter_ = degrade(spec)

    async def invoke(invocation: Invocation) -> Reply:
        return await filter_(invocation, cluster)

    return invoke


CLUSTER_FAULTS = [
    errors.NoProvider("none"),
    errors.DeadlineExceeded("late"),
    errors.Overloaded("full"),
    errors.RemoteError("ValueError: x"),
    errors.InternalError("bug"),
]


@pytest.mark.parametrize("error", CLUSTER_FAULTS, ids=lambda error: type(error).__name__)
async def test_a_value_answers_for_the_cluster(error: Exception) -> None:
    cluster = Cluster()
    invoke = stacked(cluster, has_fallback=True, fallback=0.5)
    cluster.error = error
    assert (await invoke(call())).value == 0.5
    cluster.error = None
    assert (await invoke(call())).body == b"good"


async def test_none_is_a_value() -> None:
    cluster = Cluster()
    cluster.error = errors.NoProvider("none")
    reply = await stacked(cluster, has_fallback=True, fallback=None)(call())
    assert reply == Reply(value=None)


async def test_a_function_gets_the_arguments_and_does_not_block_the_loop() -> None:
    cluster = Cluster()
    cluster.error = errors.NoProvider("none")

    def blocking(user_id: int) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return user_id * 2

    async def asynchronous(user_id: int) -> int:
        return user_id * 3

    assert (await stacked(cluster, has_fallback=True, fallback=blocking)(call())).value == 14
    assert (await stacked(cluster, has_fallback=True, fallback=asynchronous)(call())).value == 21


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidArgument("bad"),
        errors.Unimplemented("no"),
        errors.PermissionDenied("no"),
        errors.RemoteError("NoSuchUser: 7", details=b"declared"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_callers_fault_and_a_declared_exception_are_not_hidden(error: Exception) -> None:
    cluster = Cluster()
    cluster.error = error
    with pytest.raises(type(error)):
        await stacked(cluster, has_fallback=True, fallback=0.5)(call())


async def test_without_a_fallback_the_error_stays() -> None:
    cluster = Cluster()
    cluster.error = errors.NoProvider("none")
    with pytest.raises(errors.NoProvider):
        await stacked(cluster)(call())


async def test_the_last_good_reply_answers_only_its_own_question() -> None:
    cluster = Cluster()
    invoke = stacked(cluster, has_fallback=True, fallback=LAST_GOOD_REPLY)
    await invoke(call(b"user 7"))
    cluster.error = errors.NoProvider("none")
    assert (await invoke(call(b"user 7"))).body == b"good"
    with pytest.raises(errors.NoProvider):
        await invoke(call(b"user 8"))


async def test_it_says_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cluster = Cluster()
    invoke = stacked(cluster, has_fallback=True, fallback=1)
    cluster.error = errors.NoProvider("none")
    for _ in range(3):
        await invoke(call())
    cluster.error = None
    for _ in range(3):
        await invoke(call())
    assert [record.message for record in caplog.records] == [
        "ads.Ctr.predict is answered by its fallback: UNAVAILABLE: none",
        "ads.Ctr.predict answers again after 3 degraded calls",
    ]


def test_what_is_remembered_is_bounded_by_count_and_bytes() -> None:
    memory = LastGoodReplies(max_replies=2, max_bytes=10)
    memory.keep(b"a", b"1" * 4)
    memory.keep(b"b", b"2" * 4)
    assert memory.find(b"a") == b"1111"  # now b is the least recently used
    memory.keep(b"c", b"3" * 4)
    assert (memory.find(b"a"), memory.find(b"b"), memory.find(b"c")) == (b"1111", None, b"3333")
    memory.keep(b"d", b"4" * 8)
    assert (memory.find(b"a"), memory.find(b"c"), memory.find(b"d")) == (None, None, b"4" * 8)
    memory.keep(b"e", b"5" * 11)
    assert memory.find(b"e") is None


class Verdict(Protection):
    """Protection that says what it is told to."""

    def __init__(self, verdict: Admission) -> None:
        super().__init__()
        self.verdict = verdict

    def admit(self, method: str, priority: int, remaining_s: float, now_s: float, dice: Dice) -> Admission:
        return self.verdict


def protected(cluster: Cluster, verdict: Admission, switches: Switches | None = None, **facts: Any) -> Any:
    spec = ServiceSpec(
        name="ads.Ctr", methods={"predict": MethodSpec(name="predict", parameters=(Parameter("user_id"),), **facts)}
    )
    filter_ = degrade(spec, protection=Verdict(verdict), switches=switches)

    async def invoke(invocation: Invocation) -> Reply:
        return await filter_(invocation, cluster)

    return invoke


@pytest.mark.parametrize(
    ("verdict", "why"),
    [(Admission.DEGRADE_FAILING, "nodes fail"), (Admission.DEGRADE_WAITING, "not be answered in time")],
)
async def test_what_protection_does_not_send_is_answered_or_refused_clearly(verdict: Admission, why: str) -> None:
    cluster = Cluster()
    assert (await protected(cluster, verdict, has_fallback=True, fallback=0.5)(call())).value == 0.5
    with pytest.raises(errors.Degraded, match=rf"ads\.Ctr\.predict \(priority 1\) is degraded: .*{why}") as caught:
        await protected(cluster, verdict)(call())
    assert not caught.value.may_have_run


@pytest.mark.parametrize("verdict", [Admission.PASS, Admission.PROBE])
async def test_what_protection_sends_is_sent(verdict: Admission) -> None:
    assert (await protected(Cluster(), verdict, has_fallback=True, fallback=0.5)(call())).body == b"good"


async def test_a_degraded_call_is_answered_from_memory_where_there_is_one() -> None:
    cluster = Cluster()
    spec = ServiceSpec(
        name="ads.Ctr", methods={"predict": MethodSpec(name="predict", has_fallback=True, fallback=LAST_GOOD_REPLY)}
    )
    protection = Verdict(Admission.PASS)
    filter_ = degrade(spec, protection=protection)
    await filter_(call(b"user 7"), cluster)
    protection.verdict = Admission.DEGRADE_FAILING
    assert (await filter_(call(b"user 7"), cluster)).body == b"good"
    with pytest.raises(errors.Degraded):
        await filter_(call(b"user 8"), cluster)


def switched(**facts: Any) -> tuple[Switches, ServiceSpec]:
    spec = ServiceSpec(
        name="ads.Ctr", methods={"predict": MethodSpec(name="predict", parameters=(Parameter("user_id"),), **facts)}
    )
    return Switches(spec), spec


async def test_force_never_calls() -> None:
    switches, spec = switched(has_fallback=True, fallback=0.5)
    filter_ = degrade(spec, switches=switches)

    async def cluster(invocation: Invocation) -> Reply:
        raise AssertionError("called")

    switches.set("force")
    assert (await filter_(call(), cluster)).value == 0.5
    switches.set("force", "predict", answer=lambda user_id: user_id * 2)
    assert (await filter_(call(), cluster)).value == 14
    switches.set(None, "predict")
    assert (await filter_(call(), cluster)).value == 0.5
    switches.set(None)
    assert (await filter_(call(), Cluster())).body == b"good"


async def test_force_without_a_fallback_refuses_and_says_so() -> None:
    switches, spec = switched()
    switches.set("force", "predict")
    with pytest.raises(errors.Degraded, match="switched to force"):
        await degrade(spec, switches=switches)(call(), Cluster())


async def test_fail_may_bring_an_answer_of_its_own() -> None:
    switches, spec = switched()
    cluster = Cluster()
    filter_ = degrade(spec, switches=switches)
    cluster.error = errors.NoProvider("none")
    with pytest.raises(errors.NoProvider):
        await filter_(call(), cluster)
    switches.set("fail", answer=None)
    assert await filter_(call(), cluster) == Reply(value=None)


async def test_off_lets_calls_and_errors_through() -> None:
    switches, spec = switched(has_fallback=True, fallback=0.5)
    switches.set("off", "predict")
    filter_ = degrade(spec, protection=Verdict(Admission.DEGRADE_FAILING), switches=switches)
    cluster = Cluster()
    assert (await filter_(call(), cluster)).body == b"good"
    cluster.error = errors.NoProvider("none")
    with pytest.raises(errors.NoProvider):
        await filter_(call(), cluster)


def test_switches_are_checked_and_shown() -> None:
    switches, _ = switched()
    with pytest.raises(errors.ConfigError, match=r"no method 'predct'.*predict"):
        switches.set("force", "predct")
    with pytest.raises(errors.ConfigError, match="force, fail, off"):
        switches.set("on")
    switches.set("off")
    switches.set("force", "predict")
    assert switches.shown() == {"*": "off", "predict": "force"}
    assert repr(switches) == "Switches(*: off, predict: force)"


def test_a_switch_refuses_a_function_of_other_arguments() -> None:
    spec = ServiceSpec(
        name="ads.Ctr",
        methods={
            "predict": MethodSpec(name="predict", parameters=(Parameter("user_id"),)),
            "reset": MethodSpec(name="reset"),
        },
    )
    switches = Switches(spec)
    switches.set("force", "predict", answer=lambda user_id: user_id)
    with pytest.raises(errors.ConfigError, match=r"reset.*does not take the method's arguments \(\)"):
        switches.set("force", answer=lambda user_id: user_id)
    with pytest.raises(errors.ConfigError, match=r"predict.*does not take the method's arguments \(user_id\)"):
        switches.set("force", "predict", answer=lambda: 0)
    assert switches.shown() == {"predict": "force"}
