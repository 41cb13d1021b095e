"""The short way of a call to its handler: what the default filters do where nothing has to be done, in one coroutine.

As ``consumer.short``, and for the same reason: readiness, deadline and codec ask the same objects the same questions in
the same order, without a coroutine and a record for each of them. It is for unary coroutine methods without a limit,
batches or compression, while nobody traces or measures and no service has a token; everything else, and every stack
that was edited, takes the filters.
``tests/unit/provider/test_short.py`` runs one list of calls over both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.codec import MethodCodec
from steelyard.errors import DeadlineExceeded, RpcError
from steelyard.filter import encoded, ends_the_task, travelling
from steelyard.invoke import Served, serving
from steelyard.model import CallShape, Invocation, Reply
from steelyard.service import BoundMethod

from .life import Life

# A default stack with one filter more has no short way before this one knows of it.
COVERED = ("tracing", "metrics", "token", "readiness", "deadline", "limit", "codec")


@dataclass(frozen=True, slots=True)
class ShortMethod:
    """One method that has a short way. *note* hears of what the handler raised."""

    method: BoundMethod
    codec: MethodCodec
    life: Life | None
    note: Callable[[str, BoundMethod, BaseException], None]

    async def serve(self, invocation: Invocation, now_s: float) -> Reply:
        """*invocation* names the service by its key and holds the method's spec, as the filters have it."""
        codec, life, method = self.codec, self.life, self.method
        if life is not None and not life.is_open:
            raise life.refusal()
        if invocation.deadline_at <= now_s:
            raise DeadlineExceeded(
                f"{invocation.service}.{invocation.method}: the deadline was over before the method could start",
                may_have_run=False,
            )
        served = Served(invocation)
        serving.set(served)
        try:
            args = codec.decode_arguments(invocation.body or b"")
            try:
                value = await method.function(*args)
            except RpcError as error:
                # It speaks of a call that the handler has made; this one has begun.
                error.may_have_run = True
                self.note(invocation.service, method, error)
                raise
            except Exception as error:
                self.note(invocation.service, method, error)
                raise
            return Reply(None, encoded(codec, value))
        except RpcError:
            raise
        except BaseException as error:
            if ends_the_task(error):
                raise
            raise travelling(codec, error, invocation) from error
        finally:
            served.is_over = True


def has_short_way(method: BoundMethod) -> bool:
    """Whether a method can have one, as far as it depends on the method itself."""
    spec = method.spec
    is_plain = method.is_async and not method.is_stream and method.batch is None and not spec.compress
    return is_plain and spec.shape is CallShape.UNARY
