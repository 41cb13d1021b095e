"""What a handler's error says about the device that it ran on.

By the names of classes and not by the classes: a provider must not import torch to know torch's errors, and a model
server has one of many libraries. Old torch, ONNX and plain CUDA bindings raise RuntimeError for everything, so for the
generic classes alone the text is looked at as well.

Two kinds, because they heal differently. *Out of memory* passes: what filled the memory is freed. A *fatal* device
error stays: a CUDA context that has seen an illegal access answers every later call with the same error, until the
process ends or somebody resets the device (CUDA programming guide, "sticky errors").

Python's own MemoryError is neither: an argument that asks for an absurd array raises it too, and a caller must not be
able to take a node out by that.
"""

from __future__ import annotations

import re
from enum import Enum


class Trouble(Enum):
    """What is wrong with a device."""

    OUT_OF_MEMORY = "the device is out of memory"
    FATAL = "the device failed"


_OUT_OF_MEMORY = frozenset(
    {
        "OutOfMemoryError",  # torch (also torch.cuda's), cupy
        "ResourceExhaustedError",  # TensorFlow
    }
)
_FATAL = frozenset(
    {
        "AcceleratorError",  # torch since 2.8
        "CUDARuntimeError",  # cupy
        "CUDADriverError",  # cupy
        "CudaAPIError",  # numba
        "CudaError",  # cuda-python, and torch's own bindings
        "NVMLError_GpuIsLost",  # nvidia-ml-py
    }
)
# jaxlib's, ONNX Runtime's and everybody's: they say which by their text alone.
_GENERIC = frozenset({"RuntimeError", "XlaRuntimeError", "JaxRuntimeError", "RuntimeException", "Fail", "EPFail"})
_MEMORY_TEXT = re.compile(
    r"(CUDA|HIP|XPU|MPS|NPU|device)\b.{0,40}\bout of memory|RESOURCE_EXHAUSTED: Out of memory", re.I
)
_FATAL_TEXT = re.compile(r"\b(CUDA|HIP|cuDNN|CUBLAS)\b.{0,8}\b(error|failure)\b|device-side assert", re.IGNORECASE)
_DEEPEST = 8  # causes that are followed; a chain may be a ring


def trouble_of(error: BaseException) -> Trouble | None:
    """What *error*, or what it was raised from, says about the device; None: nothing."""
    here: BaseException | None = error
    for _ in range(_DEEPEST):
        if here is None:
            return None
        found = _trouble_of_one(here)
        if found is not None:
            return found
        here = here.__cause__
    return None


def _trouble_of_one(error: BaseException) -> Trouble | None:
    names = {kind.__name__ for kind in type(error).__mro__}
    text = _text(error) if names & (_GENERIC | _FATAL) else ""
    if names & _OUT_OF_MEMORY or _MEMORY_TEXT.search(text):
        return Trouble.OUT_OF_MEMORY
    if names & _FATAL or _FATAL_TEXT.search(text):
        return Trouble.FATAL
    return None


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:  # an exception whose own text fails
        return ""
