"""Accelerators by NVML: what is there, and how busy it is.

NVML is a seam: every function takes the module (``pynvml`` of the package nvidia-ml-py, extra ``gpu``) as an argument,
so tests hand in a fake and every branch is walked on machines without a GPU.

NVML sees all devices of the machine; a process that was given some of them by CUDA_VISIBLE_DEVICES must count, and
report, only those: four providers on four GPUs are four nodes with one device each. Indices in that variable are
taken in PCI order, which is NVML's; CUDA agrees when CUDA_DEVICE_ORDER=PCI_BUS_ID or when all devices are alike.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

log = logging.getLogger(__name__)


def load_nvml() -> Any | None:
    """The NVML module, initialised; None, with one debug line, without the package, a driver or a right to use it."""
    try:
        import pynvml  # not at the top: it is an extra, and reading it takes 30 ms
    except ImportError:
        log.debug("no accelerators: nvidia-ml-py is not installed (pip install 'steelyard[gpu]')")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.debug("no accelerators: NVML says %s", error)
        return None
    return pynvml


def detect_accelerators(nvml: Any | None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The names of the devices this process may use, one entry a device; of a divided (MIG) device its slices.

    A device that does not answer is left out with a warning: it cannot be computed on either.
    """
    if nvml is None:
        return ()
    names: list[str] = []
    try:
        for handle in _visible(nvml, environ):
            try:
                names.extend(_text(nvml.nvmlDeviceGetName(part)) for part in _slices(nvml, handle) or [handle])
            except nvml.NVMLError as error:
                log.warning("an accelerator is left out: NVML says %s", error)
    except nvml.NVMLError as error:
        log.warning("accelerators cannot be listed: NVML says %s", error)
    return tuple(names)


def gpu_source(nvml: Any, environ: Mapping[str, str] = os.environ) -> Callable[[], Mapping[str, float]]:
    """A Sampler source of the visible devices: ``gpu``, ``gpu_memory``, ``gpu_throttled``, in [0, 1]; empty when there
    are no devices.

    * ``gpu``: the mean busy share, because the calls of one node are spread over its devices. Busy is NVML's
      ``utilization.gpu``: the share of the last sample period (1/6 to 1 s) in which any kernel ran; it says nothing of
      how full the device was. A device that fails makes it unknown (which is not 0), and so does a divided one: NVML
      does not measure slices.
    * ``gpu_memory``: of the fullest device, used over total.
    * ``gpu_throttled``: the part of the devices whose clocks are held down by heat or a power brake at this moment.

    What NVML does not say is left out, and named in the log once; when it says nothing at all its error is raised.
    """
    complaints: set[str] = set()

    def measure() -> Mapping[str, float]:
        handles = list(_visible(nvml, environ))
        found: dict[str, float] = {}
        failure: Exception | None = None
        for name, read in (("gpu", _busy), ("gpu_memory", _fullest), ("gpu_throttled", _throttled)):
            try:
                share = read(nvml, handles) if handles else None
                found |= {} if share is None else {name: share}
            except nvml.NVMLError as error:
                failure = error
                if name not in complaints:
                    complaints.add(name)
                    log.warning("the utilization %r is unknown: NVML says %s", name, error)
        if failure is not None and not found:
            raise failure
        return found

    return measure


def accelerator_facts(nvml: Any | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The driver's version, and the memory in bytes of the smallest device (or slice) that this process may use;
    nothing where NVML does not say."""
    facts: dict[str, str] = {}
    if nvml is None:
        return facts
    try:
        facts["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        parts = [part for handle in _visible(nvml, environ) for part in _slices(nvml, handle) or [handle]]
        sizes = [int(nvml.nvmlDeviceGetMemoryInfo(part).total) for part in parts]
        if sizes and min(sizes) > 0:
            facts["accelerator_memory"] = str(min(sizes))
    except nvml.NVMLError as error:
        log.debug("NVML does not tell everything of its devices: %s", error)
    return facts


def _busy(nvml: Any, handles: Sequence[Any]) -> float:
    return sum(float(nvml.nvmlDeviceGetUtilizationRates(each).gpu) for each in handles) / len(handles) / 100.0


def _fullest(nvml: Any, handles: Sequence[Any]) -> float | None:
    """None where no device has memory of its own (those that share the machine's tell a total of 0)."""
    infos = [nvml.nvmlDeviceGetMemoryInfo(each) for each in handles]
    return max((float(info.used) / float(info.total) for info in infos if info.total), default=None)


# nvml.h: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown. Not: idle, an application's own
# clocks, the power cap (a device at its power cap is simply busy).
_HELD_DOWN = 0x08 | 0x20 | 0x40 | 0x80


def _throttled(nvml: Any, handles: Sequence[Any]) -> float:
    # Renamed in driver 535 ("clocks event reasons"); older bindings have the old name only.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    return sum(bool(int(ask(each)) & _HELD_DOWN) for each in handles) / len(handles)


def _visible(nvml: Any, environ: Mapping[str, str]) -> Iterator[Any]:
    count = nvml.nvmlDeviceGetCount()
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        for index in range(count):
            yield nvml.nvmlDeviceGetHandleByIndex(index)
        return
    for word in (part.strip() for part in chosen.split(",")):
        if word.isdecimal() and int(word) < count:
            yield nvml.nvmlDeviceGetHandleByIndex(int(word))
        elif word.startswith(("GPU-", "MIG-")):
            yield nvml.nvmlDeviceGetHandleByUUID(word)
        else:
            return  # CUDA's own rule: the first entry that names no device ends the list


def _slices(nvml: Any, handle: Any) -> list[Any]:
    """The MIG slices of a device, empty when it is whole. Most devices cannot be divided and answer "not supported"."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    slices = []
    for index in range(count):
        try:
            slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:
            continue  # slots without a slice answer "not found"
    return slices


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
