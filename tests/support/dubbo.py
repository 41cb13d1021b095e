"""Apache Dubbo for Python, in an environment of its own: the foreign end of the interop tests.

The environment is made once, in .cache. Nothing of it is imported here: its programs run as processes.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

_CACHE = Path(__file__).resolve().parents[2] / ".cache"
_PACKAGES = ("apache-dubbo==3.0.0b1", "kazoo==2.11.0", "msgpack==1.1.0")

CONSUMER = """
import os, sys, dubbo, msgpack
from dubbo.configs import ReferenceConfig, RegistryConfig
boot = dubbo.Dubbo(registry_config=RegistryConfig.from_url(sys.argv[1]))
client = boot.create_client(ReferenceConfig.from_url("tri:///" + sys.argv[2]))
pack = lambda *a: msgpack.packb(list(a))
call = client.unary(sys.argv[3], request_serializer=pack, response_deserializer=msgpack.unpackb)
print("answer:", call(*map(int, sys.argv[4:])), flush=True)
os._exit(0)
"""

PROVIDER = """
import sys, threading, dubbo
from dubbo.configs import RegistryConfig, ServiceConfig
from dubbo.proxy.handlers import RpcMethodHandler, RpcServiceHandler
echo = RpcMethodHandler.unary(method=lambda body: body, method_name="echo")
handler = RpcServiceHandler(service_name=sys.argv[2], method_handlers=[echo])
boot = dubbo.Dubbo(registry_config=RegistryConfig.from_url(sys.argv[1]))
server = boot.create_server(ServiceConfig(service_handler=handler, host="127.0.0.1", port=int(sys.argv[3])))
server.start()
print("serving", flush=True)
threading.Event().wait()
"""


def dubbo_python() -> str:
    """The interpreter that has Dubbo; blocking, a minute the first time."""
    home = _CACHE / f"dubbo-{sys.version_info[0]}.{sys.version_info[1]}"
    python, stamp = home / "bin" / "python", home / "complete"
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "dubbo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-qq", *_PACKAGES], check=True)
            stamp.touch()
    return str(python)
