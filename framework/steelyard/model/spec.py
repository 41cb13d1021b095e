"""What a contract says, as data: derived once from decorators (``service``), read by codec, proxies and dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CallShape(StrEnum):
    UNARY = "unary"
    SERVER_STREAM = "server_stream"
    CLIENT_STREAM = "client_stream"
    BIDIRECTIONAL = "bidirectional"

    @property
    def gives_stream(self) -> bool:
        """Whether the answer is a stream."""
        return self in (CallShape.SERVER_STREAM, CallShape.BIDIRECTIONAL)

    @property
    def takes_stream(self) -> bool:
        """Whether one of the arguments is a stream."""
        return self in (CallShape.CLIENT_STREAM, CallShape.BIDIRECTIONAL)


class Codec(StrEnum):
    """How bodies are written. PROTOBUF is for methods with exactly one message in and one message type out."""

    MSGPACK = "msgpack"
    PROTOBUF = "protobuf"


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a method. ``annotation`` is the resolved type (``Any`` when there is none).

    Keyword-only parameters stand last; on the wire every argument travels by position.
    """

    name: str
    annotation: Any = Any
    default: Any = _REQUIRED
    is_keyword_only: bool = False

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Calls of one method, from whoever they come, served by one call of its implementation.

    ``max_size``: calls in one batch [32], 1 to 65,536. ``max_wait_s``: how long the first call of a batch may wait for
    others [2 ms], 0 to 10 s; it does not wait when as many are there as came last time. ``at_once``: batches that run
    at a time [1: a device takes one after another]. ``ragged``: what happens to a call whose arrays have another shape
    or dtype than the method's: "reject" [it is refused], or "split" (each shape makes its own batches).
    """

    max_size: int = 32
    max_wait_s: float = 0.002
    at_once: int = 1
    ragged: str = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpec:
    """One method of a contract.

    ``returns`` is the resolved return type: of the one reply, or of one item of a stream. ``timeout_s`` is the
    default deadline (None: the consumer's default). ``is_idempotent`` allows a repeat of a call that may have
    run. ``hash_key`` names the argument whose value keeps calls on one node. ``priority`` 0 is degraded last.
    ``fallback`` answers when the cluster cannot: a value, a function of the call's arguments, or LAST_GOOD_REPLY
    (``service``); ``has_fallback`` tells None as a value from no fallback. ``raises`` are the exceptions that arrive
    as themselves. ``is_async`` says how the *contract* declares it. ``service`` is the name of the service it belongs
    to, for messages. ``batch``: the implementation takes many calls at once (None: one by one).
    ``stream_at`` is the place of the parameter that is a stream, and ``items`` the resolved type of one of its items.
    ``compress``: how large bodies are compressed between ends that both can, "zstd" or "lz4" ("": they are not).
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    returns: Any = Any
    shape: CallShape = CallShape.UNARY
    codec: Codec = Codec.MSGPACK
    timeout_s: float | None = None
    is_idempotent: bool = False
    hash_key: str | None = None
    priority: int = 1
    has_fallback: bool = False
    fallback: Any = None
    raises: tuple[type[Exception], ...] = ()
    is_async: bool = True
    service: str = ""
    batch: Batch | None = None
    stream_at: int | None = None
    items: Any = Any
    compress: str = ""

    @property
    def qualified_name(self) -> str:
        """``service.method``: how messages name it."""
        return f"{self.service}.{self.name}" if self.service else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A service: its name, version and group, and its methods by name. ``key`` is ``[group/]name[:version]``."""

    name: str
    version: str = ""
    group: str = ""
    methods: Mapping[str, MethodSpec] = field(default_factory=dict)
    contract: type | None = None
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Kept and not made when asked for: a provider asks once a call. Written out and not the registry's ServiceKey:
        # its package brings an event loop with it, and a module that declares a contract must stay light.
        group = f"{self.group}/" if self.group else ""
        version = f":{self.version}" if self.version else ""
        object.__setattr__(self, "key", f"{group}{self.name}{version}")
