"""The small messages written by hand, beside protobuf's own reading and writing of the same."""

from __future__ import annotations

import base64
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.interop.orca import OrcaLoadReport

from steelyard.model import LoadReport
from steelyard.wire.plain import message
from steelyard.wire.plain.open_orca import _interval_s
from steelyard.wire.plain.orca import decode_report, encode_report, read_header

shares = st.floats(0, 1.5)
names = st.text(min_size=1, max_size=20).filter(lambda name: name not in ("cpu", "memory", "application"))
rates = st.none() | st.floats(0, 1e9)
counts = st.none() | st.integers(0, 2**53 - 1)


@given(st.dictionaries(names, shares, max_size=8), st.none() | shares, st.none() | shares, rates, rates, counts, counts)
def test_reports_are_what_protobuf_takes_them_for(
    others: dict[str, float],
    cpu: float | None,
    memory: float | None,
    calls: float | None,
    errors: float | None,
    in_flight: int | None,
    queue: int | None,
) -> None:
    utilization = {**others, **({} if cpu is None else {"cpu": cpu}), **({} if memory is None else {"memory": memory})}
    report = LoadReport(utilization, in_flight, queue, 0.0, calls, errors)
    encoded = encode_report(report, load=cpu)
    read = OrcaLoadReport.FromString(encoded)
    assert (read.cpu_utilization, read.mem_utilization) == (cpu or 0.0, memory or 0.0)
    assert (read.rps_fractional, read.eps, read.application_utilization) == (calls or 0.0, errors or 0.0, cpu or 0.0)
    assert dict(read.utilization) == others
    back = decode_report(encoded)
    assert back.utilization == utilization | ({} if cpu is None else {"application": cpu}), (
        "0.0 is told, and is no None"
    )
    assert (back.in_flight, back.queue_depth, back.calls_per_s, back.errors_per_s) == (in_flight, queue, calls, errors)


@given(st.dictionaries(names, shares, max_size=8), shares, shares)
def test_what_protobuf_writes_is_read(others: dict[str, float], cpu: float, load: float) -> None:
    told = OrcaLoadReport(cpu_utilization=cpu, application_utilization=load, utilization=others, request_cost={"x": 1})
    expected = {**others, **({"cpu": cpu} if cpu else {}), **({"application": load} if load else {})}
    assert decode_report(told.SerializeToString()).utilization == expected


@given(st.binary(max_size=200))
def test_nonsense_is_a_value_error_and_nothing_else(encoded: bytes) -> None:
    for read in (decode_report, _interval_s, lambda data: list(message.fields(data))):
        try:
            read(encoded)
        except ValueError:
            pass


def test_bounds() -> None:
    many = encode_report(LoadReport({f"r{number}": 0.5 for number in range(65)}))
    with pytest.raises(ValueError, match="more than 64 resources"):
        decode_report(many)
    with pytest.raises(ValueError, match="at most 8192 are read"):
        decode_report(bytes(8193))


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers(value: int) -> None:
    ((field, read),) = message.fields(message.number(7, value))
    assert (field, message.as_number(read)) == (7, value)


@pytest.mark.parametrize(
    ("header", "utilization"),
    [
        ("TEXT cpu_utilization=0.3, utilization.gpu=0.9,named_metrics.x=3", {"cpu": 0.3, "gpu": 0.9}),
        ('JSON {"cpu_utilization": 0.3, "utilization": {"gpu": 0.9}, "x": "y"}', {"cpu": 0.3, "gpu": 0.9}),
        ("BIN " + base64.b64encode(encode_report(LoadReport({"cpu": 0.3}))).decode(), {"cpu": 0.3}),
    ],
)
def test_envoys_header(header: str, utilization: dict[str, float]) -> None:
    assert read_header(header).utilization == utilization


@pytest.mark.parametrize(
    "header", ["", "TEXT cpu=high", "JSON [1]", "JSON {", "BIN !", "XML <x/>", "TEXT " + "a" * 9000]
)
def test_a_header_that_is_none_is_a_value_error(header: str) -> None:
    with pytest.raises(ValueError):
        read_header(header)


def test_the_interval_is_kept_within_bounds() -> None:
    def asked(seconds: int, nanos: int = 0) -> bytes:
        return message.data(1, message.number(1, seconds) + message.number(2, nanos))

    assert [_interval_s(asked(*each)) for each in ((0, 1), (2, 500_000_000), (-1, 0), (10**9, 0))] == [
        1.0,
        2.5,
        1.0,
        3600.0,
    ]
    assert _interval_s(b"") == 1.0
    assert math.isfinite(_interval_s(asked(2**62)))
