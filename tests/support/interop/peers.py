"""Programs of others, as processes: grpc-js, Apache Dubbo for Python, nginx and Envoy.

``./dev test`` puts them where they are looked for here. What is missing is an error and never a reason to skip.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from support.zookeeper import free_port

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache"
START_S = 60.0


class PeerMissing(RuntimeError):
    """A foreign program is not there."""


def found(path: Path, what: str) -> str:
    if not path.exists():
        raise PeerMissing(f"these tests run {what}, and {path} is not there; `./dev test` installs it")
    return str(path)


def program(name: str) -> str:
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise PeerMissing(f"these tests run {name}, which is not on the PATH; `./dev test` installs it")
    return path


def dubbo_python() -> str:
    """The interpreter that has Apache Dubbo."""
    return found(CACHE / "peers" / "bin" / "python", "Apache Dubbo for Python")


def js() -> tuple[list[str], dict[str, str]]:
    """The command that runs ``peer.js``, and its environment."""
    modules = found(CACHE / "peers-js" / "node_modules", "grpc-js")
    return [program("node"), str(HERE / "peer.js")], {**os.environ, "NODE_PATH": modules}


@asynccontextmanager
async def running(
    *command: str, until: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process that has printed a line with *until* in it, and that line."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=env
        )
        try:
            assert process.stdout is not None
            line = ""
            async with asyncio.timeout(START_S):
                while until not in line:
                    line = (await process.stdout.readline()).decode()
                    if not line:
                        errors.seek(0)
                        raise RuntimeError(f"{command[0]} has ended:\n{errors.read().decode(errors='replace')[-2000:]}")
            yield process, line.strip()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def answer_of(*command: str, env: Mapping[str, str] | None = None) -> str:
    """What a program prints; its errors are the test's."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    try:
        async with asyncio.timeout(START_S):
            out, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, errors.decode(errors="replace")[-3000:]
    return out.decode()


_NGINX = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} http2;
    client_max_body_size 0;
    client_body_timeout 1h;
    location {path} {{
      grpc_pass grpc://{upstream};
      grpc_read_timeout 1h;
      grpc_send_timeout 1h;
    }}
  }}
}}
"""

_ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: grpc
          codec_type: HTTP2
          stream_idle_timeout: 0s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "{path}"}}
                route: {{cluster: provider, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: provider
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: provider
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: {host}, port_value: {upstream_port}}}}}}}
    {health}
"""
_ENVOY_HEALTH = """health_checks:
    - timeout: 1s
      interval: 0.2s
      no_traffic_interval: 0.2s
      unhealthy_threshold: 1
      healthy_threshold: 1
      grpc_health_check: {{service_name: "{service}"}}
    common_lb_config: {{healthy_panic_threshold: {{value: 0}}}}"""


@asynccontextmanager
async def nginx(upstream: str, path: str = "/") -> AsyncIterator[str]:
    """nginx in front of *upstream*, for paths that begin with *path*; its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(_NGINX.format(folder=folder, port=port, path=path, upstream=upstream))
        async with _listening([program("nginx"), "-p", folder, "-c", str(config)], port):
            yield f"127.0.0.1:{port}"


@asynccontextmanager
async def envoy(upstream: str, path: str = "/", health_of: str = "") -> AsyncIterator[str]:
    """The same with Envoy. *health_of*: it asks the provider for the health of that service, and goes by the answer."""
    port = free_port()
    host, _, upstream_port = upstream.rpartition(":")
    health = _ENVOY_HEALTH.format(service=health_of) if health_of else ""
    config = _ENVOY.format(port=port, path=path, host=host, upstream_port=upstream_port, health=health)
    command = [found(CACHE / "peers" / "bin" / "envoy", "Envoy"), "--config-yaml", config, "--log-level", "error"]
    async with _listening([*command, "--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart"], port):
        yield f"127.0.0.1:{port}"


@asynccontextmanager
async def _listening(command: list[str], port: int) -> AsyncIterator[None]:
    """A process that is ready when its port accepts."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        try:
            async with asyncio.timeout(START_S):
                while not await _accepts(port):
                    if process.returncode is not None:
                        errors.seek(0)
                        raise RuntimeError(f"{command[0]} has ended:\n{errors.read().decode(errors='replace')[-3000:]}")
                    await asyncio.sleep(0.02)
            yield
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(10):
                        await process.wait()
                except TimeoutError:
                    process.kill()
            await process.wait()


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
