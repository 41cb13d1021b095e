"""gRPC reflection for protobuf methods, so that grpcurl and its like can call them without a .proto file.

grpcio-reflection answers; what it needs is a pool of descriptors. The messages bring theirs. The services are often
declared in Python alone, and are then described from their contracts. v1 and v1alpha are the same messages under two
names, and are both served: newer clients ask the first and older ones know only the second.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from steelyard.model import Codec, MethodSpec, ServiceSpec

log = logging.getLogger(__name__)

_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*", re.ASCII)
_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def reflection_handlers(specs: Callable[[], Iterable[ServiceSpec]]) -> tuple[Any, ...]:
    """gRPC handlers that describe what *specs* gives at the time of asking; none without the extra ``protobuf``."""
    try:
        messages = importlib.import_module("grpc_reflection.v1alpha.reflection_pb2")
        servicers = importlib.import_module("grpc_reflection.v1alpha.reflection").aio
    except ImportError:
        return ()

    async def describe(requests: Any, context: Any) -> AsyncIterator[Any]:
        pool, names = describe_services(specs())
        async for response in servicers.ReflectionServicer(names, pool).ServerReflectionInfo(requests, context):
            yield response

    handler = grpc.stream_stream_rpc_method_handler(
        describe,
        request_deserializer=messages.ServerReflectionRequest.FromString,
        response_serializer=messages.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler}) for service in _SERVICES
    )


def describe_services(specs: Iterable[ServiceSpec]) -> tuple[Any, list[str]]:
    """A DescriptorPool of its own with everything that has protobuf methods, and the names of these services."""
    descriptor_pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    files: set[str] = set()
    names: list[str] = []
    for spec in specs:
        methods = [method for method in spec.methods.values() if method.codec is Codec.PROTOBUF]
        if not methods or spec.name in names:
            continue
        kinds = [kind.DESCRIPTOR for method in methods for kind in (_takes(method), method.returns)]
        try:
            for kind in kinds:
                _add_file(pool, kind.file, files, descriptor_pb2)
            if not any(f"{kind.file.package}.{name}" == spec.name for kind in kinds for name in _services(kind)):
                pool.AddSerializedFile(_service_file(spec.name, methods, descriptor_pb2).SerializeToString())
        except (TypeError, ValueError) as error:
            log.info("%s cannot be described by reflection: %s", spec.key, error)
            continue
        names.append(spec.name)
    return pool, names


def _services(kind: Any) -> Iterable[str]:
    """The services that a message's own file declares."""
    names: Iterable[str] = kind.file.services_by_name
    return names


def _takes(method: MethodSpec) -> Any:
    """The message class that a method takes, one or a stream of them."""
    return method.items if method.stream_at is not None else method.parameters[0].annotation


def _add_file(pool: Any, file: Any, known: set[str], descriptor_pb2: Any) -> None:
    """*file* with all that it depends on, which has to be there first."""
    if file.name in known:
        return
    known.add(file.name)
    for dependency in file.dependencies:
        _add_file(pool, dependency, known, descriptor_pb2)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    pool.AddSerializedFile(proto.SerializeToString())


def _service_file(name: str, methods: Iterable[MethodSpec], descriptor_pb2: Any) -> Any:
    """The .proto file that nobody has written. Raises ValueError for a name that such a file cannot have."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a protobuf service")
    package, _, short = name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name=f"steelyard/{name}.proto", package=package, syntax="proto3")
    service = file.service.add(name=short)
    needed: dict[str, None] = {}
    for method in methods:
        takes, returns = _takes(method).DESCRIPTOR, method.returns.DESCRIPTOR
        needed |= {takes.file.name: None, returns.file.name: None}
        service.method.add(
            name=method.name,
            input_type=f".{takes.full_name}",
            output_type=f".{returns.full_name}",
            client_streaming=method.shape.takes_stream,
            server_streaming=method.shape.gives_stream,
        )
    file.dependency.extend(needed)
    return file
