"""Apache Dubbo for Python at the other end: ``serve PORT SERVICE [ZOOKEEPER]`` or ``call SERVICE FROM``, where FROM is
``tri://host:port`` or ``zookeeper://...``. Runs in the peers' environment and imports nothing of ours.

It has no protobuf there: what it takes and gives are bytes, in which field 1 is a text (of Ask and of Told alike).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import dubbo
from dubbo.configs import ReferenceConfig, RegistryConfig, ServiceConfig
from dubbo.proxy.handlers import RpcMethodHandler, RpcServiceHandler


def message(text: str) -> bytes:
    return b"\x0a" + bytes([len(text)]) + text.encode()


def text_of(body: bytes) -> str:
    return body[2 : 2 + body[1]].decode() if body else ""


def say(body: bytes) -> bytes:
    text = text_of(body)
    if text == "break":
        raise ValueError("broken")
    if text == "wait":
        time.sleep(2)
    return body


def count(stream):
    text = text_of(stream.read())
    for number in range(3):
        yield message(text + str(number))


def add(stream) -> bytes:
    return message("".join(text_of(body) for body in stream))


def chat(stream):
    yield from stream


def serve(port: str, service: str, registry: str = "") -> None:
    handlers = [
        RpcMethodHandler.unary(method=say, method_name="Say"),
        RpcMethodHandler.server_stream(method=count, method_name="Count"),
        RpcMethodHandler.client_stream(method=add, method_name="Sum"),
        RpcMethodHandler.bi_stream(method=chat, method_name="Chat"),
    ]
    handler = RpcServiceHandler(service_name=service, method_handlers=handlers)
    boot = dubbo.Dubbo(registry_config=RegistryConfig.from_url(registry)) if registry else dubbo.Dubbo()
    boot.create_server(ServiceConfig(service_handler=handler, host="127.0.0.1", port=int(port))).start()
    print("serving", flush=True)
    threading.Event().wait()


def call(service: str, source: str) -> None:
    if source.startswith("zookeeper"):
        boot = dubbo.Dubbo(registry_config=RegistryConfig.from_url(source))
        client = boot.create_client(ReferenceConfig.from_url("tri:///" + service))
    else:
        client = dubbo.Dubbo().create_client(ReferenceConfig.from_url(f"{source}/{service}"))
    found = {"say": text_of(client.unary("Say")(message("hello") + b"\x10\x02"))}
    found["count"] = [text_of(body) for body in client.server_stream("Count")(message("n") + b"\x10\x03")]
    try:
        client.unary("Say")(message("busy"))
    except Exception as error:
        found["busy"] = str(error)
    print(json.dumps(found), flush=True)
    os._exit(0)  # its threads would keep it


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
