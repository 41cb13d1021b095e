"""Whose errors say that a device has failed, told by names, for none of these libraries is here."""

from __future__ import annotations

import pytest

from steelyard.provider.device import Trouble, trouble_of


def named(name: str, base: type[Exception] = Exception) -> type[Exception]:
    return type(name, (base,), {})


class WorkerError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (named("OutOfMemoryError", RuntimeError)("CUDA out of memory. Tried to allocate 2 GiB"), Trouble.OUT_OF_MEMORY),
        (named("Mine", named("OutOfMemoryError"))("whatever"), Trouble.OUT_OF_MEMORY),
        (named("ResourceExhaustedError")("OOM when allocating"), Trouble.OUT_OF_MEMORY),
        (named("XlaRuntimeError", RuntimeError)("RESOURCE_EXHAUSTED: Out of memory allocating"), Trouble.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), Trouble.OUT_OF_MEMORY),
        (named("AcceleratorError", RuntimeError)("CUDA error: unspecified launch failure"), Trouble.FATAL),
        (named("CUDARuntimeError", RuntimeError)("cudaErrorIllegalAddress"), Trouble.FATAL),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Trouble.FATAL),
        (RuntimeError("Triggered: device-side assert"), Trouble.FATAL),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), Trouble.FATAL),
        (named("CudaAPIError")("[719] Call to cuMemcpyDtoH"), Trouble.FATAL),
        (RuntimeError("shape mismatch"), None),
        (ValueError("CUDA error: in a value error, which no library raises for that"), None),
        (MemoryError("an argument asked for 8 EiB"), None),
        (KeyError("OutOfMemoryError"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_by_class_and_for_generic_classes_by_text(error: Exception, trouble: Trouble | None) -> None:
    assert trouble_of(error) is trouble


def test_the_cause_is_looked_at_as_well() -> None:
    error = WorkerError("a worker failed")
    error.__cause__ = RuntimeError("HIP error: invalid device function")
    assert trouble_of(error) is Trouble.FATAL
    error.__cause__.__cause__ = error  # a ring
    assert trouble_of(error) is Trouble.FATAL


def test_an_error_without_a_text_is_nothing() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no")

    assert trouble_of(Mute()) is None
