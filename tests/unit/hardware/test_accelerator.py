from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from steelyard.hardware import detect, detect_accelerators, detect_facts, gpu_source, load_nvml


class NVMLError(Exception):
    pass


@dataclass
class Device:
    name: str | bytes = "Acme G1"
    busy: int = 0
    uuid: str = ""
    is_lost: bool = False
    slices: list[Device] | None = None
    """None: cannot be divided."""
    used: float = 0.0
    held_down: int = 0
    bytes: float = 80e9


@dataclass
class FakeNvml:
    devices: list[Device] = field(default_factory=list)
    is_dead: bool = False
    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def nvmlInit(self) -> None:  # noqa: N802
        if self.is_dead:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.is_dead:
            raise NVMLError("Driver Not Loaded")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:  # noqa: N802
        for device in self.devices:
            for part in (device, *(device.slices or ())):
                if part.uuid == uuid:
                    return part
        raise NVMLError("Not Found")

    def nvmlDeviceGetName(self, device: Device) -> str | bytes:  # noqa: N802
        if device.is_lost:
            raise NVMLError("GPU is lost")
        return device.name

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> SimpleNamespace:  # noqa: N802
        if device.is_lost or device.slices:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=device.busy, memory=0)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> SimpleNamespace:  # noqa: N802
        if device.is_lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=device.used * device.bytes, total=device.bytes)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Device) -> int:  # noqa: N802
        if device.is_lost:
            raise NVMLError("GPU is lost")
        return device.held_down

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        if self.is_dead:
            raise NVMLError("Driver Not Loaded")
        return b"550.54.15"

    def nvmlDeviceGetMigMode(self, device: Device) -> tuple[int, int]:  # noqa: N802
        if device.slices is None:
            raise NVMLError("Not Supported")
        return (1 if device.slices else 0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:  # noqa: N802
        assert device.slices is not None
        if index >= len(device.slices):
            raise NVMLError("Not Found")
        return device.slices[index]


def test_none() -> None:
    assert detect_accelerators(None) == ()
    assert detect_accelerators(FakeNvml(), {}) == ()
    assert gpu_source(FakeNvml(), {})() == {}


def test_several_are_named_one_by_one_and_busy_on_the_mean() -> None:
    nvml = FakeNvml([Device(busy=100), Device(b"Acme G2", busy=50)])
    assert detect_accelerators(nvml, {}) == ("Acme G1", "Acme G2")
    assert gpu_source(nvml, {})() == {"gpu": pytest.approx(0.75), "gpu_memory": 0.0, "gpu_throttled": 0.0}


def test_memory_is_the_fullest_devices_and_heat_is_told_apart_from_a_power_cap() -> None:
    nvml = FakeNvml([Device(used=0.25, held_down=0x4), Device(used=0.75, held_down=0x40), Device(held_down=0x20 | 0x1)])
    found = gpu_source(nvml, {})()
    assert found["gpu_memory"] == pytest.approx(0.75)
    assert found["gpu_throttled"] == pytest.approx(2 / 3)


def test_the_newer_name_of_the_reasons_is_taken_where_there_is_one() -> None:
    class Newer(FakeNvml):
        def nvmlDeviceGetCurrentClocksEventReasons(self, device: Device) -> int:  # noqa: N802
            return 0x8

    assert gpu_source(Newer([Device()]), {})()["gpu_throttled"] == 1.0


def test_facts_of_accelerators() -> None:
    facts = detect_facts(nvml=FakeNvml([Device(), Device()]), environ={})
    assert (facts["hw.driver"], facts["hw.accelerator_memory"]) == ("550.54.15", "80000000000")
    assert "hw.driver" not in detect_facts(nvml=FakeNvml([Device()], is_dead=True), environ={})
    assert "hw.driver" not in detect_facts(nvml=None, environ={})


def test_memory_is_that_of_the_devices_and_slices_that_this_process_may_use() -> None:
    small, large = Device(bytes=16_000_000_000), Device(uuid="GPU-2")
    nvml = FakeNvml([small, large])
    assert detect_facts(nvml=nvml, environ={})["hw.accelerator_memory"] == "16000000000"
    assert detect_facts(nvml=nvml, environ={"CUDA_VISIBLE_DEVICES": "1"})["hw.accelerator_memory"] == "80000000000"
    divided = FakeNvml([Device(slices=[Device(b"A G1 MIG 1g.10gb", bytes=10_000_000_000)])])
    assert detect_facts(nvml=divided, environ={})["hw.accelerator_memory"] == "10000000000"
    lost = FakeNvml([Device(is_lost=True)])
    assert "hw.accelerator_memory" not in detect_facts(nvml=lost, environ={})


def test_a_gpu_makes_the_node_a_gpu_node() -> None:
    hardware = detect(nvml=lambda: FakeNvml([Device()]), environ={})
    assert (hardware.kind, hardware.accelerators) == ("gpu", ("Acme G1",))


def test_slices_are_the_devices_of_a_divided_one_and_have_no_busy_share() -> None:
    nvml = FakeNvml([Device(slices=[Device("Acme G1 MIG 1g"), Device("Acme G1 MIG 2g")]), Device("Acme G2", slices=[])])
    assert detect_accelerators(nvml, {}) == ("Acme G1 MIG 1g", "Acme G1 MIG 2g", "Acme G2")
    found = gpu_source(nvml, {})()
    assert "gpu" not in found, "NVML does not measure slices"
    assert found["gpu_memory"] == 0.0


def test_a_lost_device_is_left_out_with_a_word_and_fails_the_busy_share(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml([Device(is_lost=True), Device("Acme G2", busy=30)])
    assert detect_accelerators(nvml, {}) == ("Acme G2",)
    assert "GPU is lost" in caplog.text
    with pytest.raises(NVMLError):
        gpu_source(nvml, {})()


def test_what_nvml_does_not_say_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    source = gpu_source(FakeNvml([Device(slices=[Device()])]), {})
    for _ in range(3):
        source()
    assert caplog.text.count("the utilization 'gpu' is unknown: NVML says Not Supported") == 1


def test_a_device_without_memory_of_its_own_is_busy_all_the_same() -> None:
    nvml = FakeNvml([Device(busy=40, bytes=0)])
    assert gpu_source(nvml, {})() == {"gpu": 0.4, "gpu_throttled": 0.0}
    assert "hw.accelerator_memory" not in detect_facts(nvml=nvml, environ={})


def test_nvml_that_fails_later_is_no_error_of_detection(caplog: pytest.LogCaptureFixture) -> None:
    assert detect_accelerators(FakeNvml([Device()], is_dead=True), {}) == ()
    assert "Driver Not Loaded" in caplog.text


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ("B",)),
        ("2,0", ("C", "A")),
        ("", ()),
        ("-1", ()),
        ("0,-1,1", ("A",)),
        ("0,9,1", ("A",)),
        ("GPU-b, 0", ("B", "A")),
        ("NoDevFiles", ()),
    ],
)
def test_only_visible_devices_count(visible: str, names: tuple[str, ...]) -> None:
    nvml = FakeNvml([Device("A", 10), Device("B", 20, uuid="GPU-b"), Device("C", 30)])
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert detect_accelerators(nvml, environ) == names
    shares = {"A": 0.1, "B": 0.2, "C": 0.3}
    expected = sum(shares[name] for name in names) / len(names) if names else None
    assert gpu_source(nvml, environ)().get("gpu") == (None if expected is None else pytest.approx(expected))


def test_loading_without_the_package_or_a_driver_is_one_debug_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "steelyard.hardware")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load_nvml() is None
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert "steelyard[gpu]" in caplog.text
    caplog.clear()
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(is_dead=True))
    assert load_nvml() is None
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert "Driver Not Loaded" in caplog.text


def test_loading_gives_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml([Device()])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert load_nvml() is fake
