from __future__ import annotations

import io

import pytest
from rich.console import Console
from unit.cli.demo.made_up import HARDWARE, node_window, outcome

from steelyard.cli.demo.measure import ConsumerWindow
from steelyard.cli.demo.plan import Schedule
from steelyard.cli.demo.screen import PlainScreen, TerminalScreen, summary, table_of
from steelyard.cli.demo.stage import Glimpse, hardware_words

SCHEDULE = Schedule(12.0, True, "dual")


def glimpse(at_s: float = 5.0, *, failed: float = 3.0) -> Glimpse:
    return Glimpse(
        at_s=at_s,
        start_s=max(0.0, at_s - 2.5),
        end_s=max(0.5, at_s - 0.5),
        phase=SCHEDULE.phase_at(at_s),
        policy="dual",
        nodes=[node_window("mid-1", share=0.02, load=0.9, failed=failed), node_window("gpu-1", share=0.98)],
        balancer={},
        consumer=ConsumerWindow(calls=200, failed=0, success=0.999, p50_ms=4.0, p99_ms=90.0, accuracy=1.0),
        hardware={name: hardware_words(hardware) for name, hardware in HARDWARE.items()},
        load_std=0.2,
    )


def rendered(width: int, seen: Glimpse) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(table_of(seen, SCHEDULE, width))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits_and_says_everything(width: int) -> None:
    lines = rendered(width, glimpse())
    text = "\n".join(lines)
    assert all(len(line) <= width for line in lines)
    for word in ("fault", "mid-1 fails half its calls", "13% of a core", "GPU, emulated", "98.0%", "90%", "99.90%"):
        assert word in text
    assert len([line for line in lines if line.startswith(("mid-1", "gpu-1"))]) == 2


def test_a_node_the_balancer_does_not_know_yet_has_dashes() -> None:
    row = next(line for line in rendered(80, glimpse()) if line.startswith("mid-1"))
    assert row.split()[-3:] == ["-", "-", "-"]


def test_plain_lines_name_each_phase_once() -> None:
    out = io.StringIO()
    with PlainScreen(Console(file=out, width=200)) as screen:
        for at_s in (0.5, 1.5, 2.5, 5.0, 5.5, 9.0):
            screen.look(glimpse(at_s))
    lines = out.getvalue().splitlines()
    assert [line.split("phase: ")[1].split(" (")[0] for line in lines if "phase:" in line] == [
        "plain hashing",
        "balancing",
        "fault",
        "healed",
    ]
    assert "\x1b" not in out.getvalue()


def test_plain_lines_say_of_which_seconds_they_speak_and_begin_with_a_whole_window() -> None:
    out = io.StringIO()
    with PlainScreen(Console(file=out, width=200)) as screen:
        for at_s in (0.5, 1.0, 2.0, 2.5, 3.0, 7.5):
            screen.look(glimpse(at_s))
    told = [
        line.split("load/share in ")[1].split(":")[0] for line in out.getvalue().splitlines() if "load/share" in line
    ]
    assert told == ["0.0 to 2.0 s", "5.0 to 7.0 s"]


def test_the_live_table_is_gone_when_the_screen_closes() -> None:
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    with TerminalScreen(console, SCHEDULE) as screen:
        screen.step("ready")
        screen.training(0.5)
        screen.look(glimpse())
        assert console._live_stack
    assert not console._live_stack


def test_a_missed_bar_is_called_missed() -> None:
    out = io.StringIO()
    summary(Console(file=out, width=100), outcome(load_std=(0.1, 0.09)))
    text = out.getvalue()
    assert "missed spread of load" in text
    assert "share of the healed mid-1 / share of mid-2, its healthy twin, in the last seconds: 0.8 (at least" in text
    assert "0.9 (at most 0.4)" in text
    assert text.count("met ") >= 3
    assert "1200 calls, 0 failed; 7 attempts failed at a node (mid-1)" in text
