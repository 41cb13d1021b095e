"""Other people's RPC, as peers of bench_rpc. What it needs beyond the project is in requirements-peers.txt, and for the
heavy ones in requirements-dubbo.txt and requirements-ray.txt."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpc_common import HOST, KEPT, WARM_UP_S, Echo, free_port, summary


@dataclass(frozen=True)
class Blocking:
    """A client that blocks: *connect* gives the echo of one thread. Callers are threads then, 16 at most: more of them
    only fight for the interpreter."""

    connect: Callable[[int], Callable[[bytes], Any]]
    port: int

    def drive(self, callers: int, seconds: float, body: bytes) -> dict[str, float]:
        from threading import Thread

        took: list[float] = []
        made: list[int] = []
        begin_at = time.perf_counter() + WARM_UP_S
        end_at = begin_at + seconds
        cpu_s = time.process_time()

        def caller() -> None:
            echo, now, count = self.connect(self.port), time.perf_counter, 0
            done_at = 0.0
            while done_at < end_at:
                sent_at = now()
                echo(body)
                done_at = now()
                count += 1
                if sent_at >= begin_at:
                    took.append(done_at - sent_at)
            made.append(count)

        threads = [Thread(target=caller) for _ in range(min(callers, 16))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return summary(took, sum(made), time.perf_counter() - begin_at, time.process_time() - cpu_s)


async def serve_grpc_sync() -> int:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    handler = grpc.method_handlers_generic_handler(
        "bench.Echo", {"echo": grpc.unary_unary_rpc_method_handler(lambda body, _: body)}
    )
    server = grpc.server(ThreadPoolExecutor(16), handlers=(handler,), options=(("grpc.so_reuseport", 0),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    KEPT.append(server)
    return int(port)


async def connect_grpc_sync(port: int) -> Blocking:
    import grpc

    channel = grpc.insecure_channel(f"{HOST}:{port}")
    KEPT.append(channel)
    echo = channel.unary_unary("/bench.Echo/echo")
    return Blocking(lambda _: echo, port)


async def serve_rpyc() -> int:
    from threading import Thread

    import rpyc
    from rpyc.utils.server import ThreadedServer

    class Service(rpyc.Service):  # type: ignore[misc]
        def exposed_echo(self, body: bytes) -> bytes:
            return body

    server = ThreadedServer(Service, hostname=HOST, port=0)
    Thread(target=server.start, daemon=True).start()
    KEPT.append(server)
    return int(server.port)


async def connect_rpyc(port: int) -> Blocking:
    import rpyc

    return Blocking(lambda at: rpyc.connect(HOST, at).root.echo, port)


async def serve_pyro() -> int:
    from threading import Thread

    import Pyro5
    import Pyro5.api

    Pyro5.config.SERIALIZER = "msgpack"

    @Pyro5.api.expose
    class Service:
        def echo(self, body: bytes) -> bytes:
            return body

    daemon = Pyro5.api.Daemon(host=HOST)
    daemon.register(Service(), "echo")
    Thread(target=daemon.requestLoop, daemon=True).start()
    KEPT.append(daemon)
    return int(daemon.locationStr.rpartition(":")[2])


async def connect_pyro(port: int) -> Blocking:
    import Pyro5
    import Pyro5.api

    Pyro5.config.SERIALIZER = "msgpack"
    return Blocking(lambda at: Pyro5.api.Proxy(f"PYRO:echo@{HOST}:{at}").echo, port)


def thrift_echo() -> Any:
    import thriftpy2

    path = Path(tempfile.mkdtemp(prefix="steelyard-bench-")) / "echo.thrift"
    path.write_text("service Echo { binary echo(1: binary body) }\n")
    return thriftpy2.load(str(path), module_name="echo_thrift").Echo


async def serve_thrift() -> int:
    from threading import Thread

    from thriftpy2.rpc import make_server

    class Service:
        def echo(self, body: bytes) -> bytes:
            return body

    port = free_port()
    server = make_server(thrift_echo(), Service(), HOST, port, client_timeout=None)
    Thread(target=server.serve, daemon=True).start()
    await asyncio.sleep(0.2)
    KEPT.append(server)
    return port


async def connect_thrift(port: int) -> Blocking:
    from thriftpy2.rpc import make_client

    contract = thrift_echo()
    return Blocking(lambda at: make_client(contract, HOST, at, timeout=None).echo, port)


class Raw:
    """A message of grpclib that is its own bytes."""

    def __init__(self, body: bytes = b"") -> None:
        self.body = body

    def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
        return self.body

    @classmethod
    def FromString(cls, body: bytes) -> Raw:  # noqa: N802
        return cls(body)


async def serve_grpclib() -> int:
    import grpclib.const
    import grpclib.server

    class Service:
        async def echo(self, stream: Any) -> None:
            await stream.send_message(await stream.recv_message())

        def __mapping__(self) -> dict[str, Any]:
            return {
                "/bench.Echo/echo": grpclib.const.Handler(self.echo, grpclib.const.Cardinality.UNARY_UNARY, Raw, Raw)
            }

    port = free_port()
    server = grpclib.server.Server([Service()])
    await server.start(HOST, port)
    KEPT.append(server)
    return port


async def connect_grpclib(port: int) -> Echo:
    import grpclib.client

    channel = grpclib.client.Channel(HOST, port)
    KEPT.append(channel)
    echo = grpclib.client.UnaryUnaryMethod(channel, "/bench.Echo/echo", Raw, Raw)
    return lambda body: echo(Raw(body))


async def serve_dubbo() -> int:
    import dubbo
    from dubbo.configs import ServiceConfig
    from dubbo.proxy.handlers import RpcMethodHandler, RpcServiceHandler

    port = free_port()
    echo = RpcMethodHandler.unary(method=lambda body: body, method_name="echo")
    service = RpcServiceHandler(service_name="bench.Echo", method_handlers=[echo])
    server = dubbo.Dubbo().create_server(ServiceConfig(service_handler=service, host=HOST, port=port))
    await asyncio.to_thread(server.start)
    KEPT.append(server)
    return port


async def connect_dubbo(port: int) -> Blocking:
    import dubbo
    from dubbo.configs import ReferenceConfig

    def connect(at: int) -> Callable[[bytes], Any]:
        client = dubbo.Dubbo().create_client(ReferenceConfig.from_url(f"tri://{HOST}:{at}/bench.Echo"))
        KEPT.append(client)
        return client.unary("echo")  # type: ignore[no-any-return]

    echo = await asyncio.to_thread(connect, port)
    return Blocking(lambda _: echo, port)


async def serve_ray() -> int:
    """Ray's own cluster of one, with one replica; the port is that of its control store."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # both ends are this bench's
    import ray
    from ray import serve

    @serve.deployment(num_replicas=1, max_ongoing_requests=256)  # type: ignore[untyped-decorator]
    class Service:
        async def echo(self, body: bytes) -> bytes:
            return body

    def start() -> int:
        context = ray.init(_node_ip_address=HOST, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        serve.run(Service.bind(), name="bench", route_prefix=None)
        return int(context.address_info["gcs_address"].rpartition(":")[2])

    return await asyncio.to_thread(start)


async def connect_ray(port: int) -> Echo:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray
    from ray import serve

    ray.init(address=f"{HOST}:{port}", _node_ip_address=HOST, log_to_driver=False, logging_level="ERROR")
    handle = serve.get_app_handle("bench")
    return handle.echo.remote  # type: ignore[no-any-return]
