"""``xds.data.orca.v3.OrcaLoadReport`` by protobuf itself, beside which ours is held."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DOUBLE, STRING, INT64, MESSAGE = 1, 9, 3, 11
OPTIONAL, REPEATED = 1, 3
REPORT = {1: "cpu_utilization", 2: "mem_utilization", 6: "rps_fractional", 7: "eps", 9: "application_utilization"}
MAPS = {4: "request_cost", 5: "utilization", 8: "named_metrics"}


def _report_class() -> Any:
    """What of it is not deprecated."""
    file = descriptor_pb2.FileDescriptorProto(name="orca.proto", package="xds.data.orca.v3", syntax="proto3")
    report = file.message_type.add(name="OrcaLoadReport")
    for number, name in REPORT.items():
        report.field.add(name=name, number=number, type=DOUBLE, label=OPTIONAL)
    for number, name in MAPS.items():
        entry = report.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=STRING, label=OPTIONAL)
        entry.field.add(name="value", number=2, type=DOUBLE, label=OPTIONAL)
        kind = f".xds.data.orca.v3.OrcaLoadReport.{entry.name}"
        report.field.add(name=name, number=number, type=MESSAGE, label=REPEATED, type_name=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))


OrcaLoadReport = _report_class()
