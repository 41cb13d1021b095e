"""``where``: what it accepts, what it refuses, and that it never runs anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cluster import where
from steelyard.errors import ConfigError
from steelyard_registry import Hardware, Node

GPU = Node(
    interface="ads.Ctr",
    host="10.0.0.1",
    port=20880,
    zone="a",
    hardware=Hardware(kind="gpu", model="H200", cores=16, memory_bytes=64 << 30, accelerators=("H200", "H200")),
    tags={"pool": "ads", "x-y": "1"},
)
CPU = Node(interface="ads.Ctr", host="10.0.0.2", port=20880, zone="b", hardware=Hardware(quota=0.5))


@pytest.mark.parametrize(
    ("expression", "gpu", "cpu"),
    [
        ("hw.kind == 'gpu' and zone == 'a'", True, False),
        ("hw.kind == 'gpu' or zone == 'b'", True, True),
        ("not hw.kind == 'gpu'", False, True),
        ("zone in ('a', 'c')", True, False),
        ("zone not in ['a']", False, True),
        ("hw.memory >= 16 * 2**30", True, False),
        ("hw.quota < 1", False, True),
        ("hw.quota is None", True, False),
        ("'H200' in hw.accelerators", True, False),
        ("1 < hw.cores <= 16", True, False),
        ("tag.pool == 'ads'", True, False),
        ("tags['x-y'] == '1'", True, False),
        ("tag.pool != 'ads'", False, True),
        ("tag.pool", True, False),
        ("weight == 100 and state == 'ready' and port == 20880", True, True),
        ("host == '10.0.0.2'", False, True),
        ("True", True, True),
        ("-1 < hw.cores", True, False),
    ],
)
def test_expressions(expression: str, gpu: bool, cpu: bool) -> None:
    assert (where(expression)(GPU), where(expression)(CPU)) == (gpu, cpu)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("hw.kind = 'gpu'", "cannot read"),
        ("", "cannot read"),
        ("__import__('os').system('true')", "is not allowed"),
        ("zone.__class__", "is not a fact of a node; there are: application, group, host"),
        ("speed > 3", "'speed' in 'speed > 3' is not a fact of a node"),
        ("hw.speed > 3", "'hw.speed' in"),
        ("(lambda: True)()", "is not allowed"),
        ("[x for x in ()]", "is not allowed"),
        ("f'{zone}'", "is not allowed"),
        ("2**100000", "is not allowed"),
        ("(2**64 * 2) ** 64 > hw.cores", "is not a number within 2\\*\\*64"),
        ("zone == b'a'", "is not allowed"),
        ("tag.pool = 'x'", "cannot read .*: a comparison is written with two signs: =="),
        ("tag.pool == blue", "'blue' in .* is not a fact of a node; .*; if it is a text, quote it: 'blue'"),
        ("zone = a == b", "a comparison is written with two signs"),
        ("tag.is == 'x'", "'is' is a word of the language; write tags\\['is'\\]"),
        ("tag.class in ('x',)", "write tags\\['class'\\]"),
        ("zones == 'a'", "did you mean zone\\?"),
        ("tag.pool == 'a=b' and", "cannot read .*invalid syntax"),
        ("x" * 5000, "at most 4096"),
        ("(" * 300 + "1" + ")" * 300, "cannot read|nested too deeply"),
    ],
)
def test_what_is_refused_says_why(expression: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        where(expression)


@given(st.text(max_size=60))
def test_any_text_is_a_predicate_or_a_config_error(text: str) -> None:
    try:
        predicate = where(text)
    except ConfigError:
        return
    assert predicate(GPU) in (True, False)
    assert predicate(CPU) in (True, False)
