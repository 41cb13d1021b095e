from __future__ import annotations

import json

from unit.cli.demo.made_up import outcome

from steelyard.cli.demo.outcome import expectations


def test_json_holds_what_was_promised() -> None:
    told = json.loads(outcome().encoded())
    promised = {
        "calls", "failed_calls", "p50_ms", "p99_ms", "nodes", "load_std_before", "load_std_after",
        "sick_node_share_during_fault", "sick_node_share_after_recovery", "consumer_success_during_fault",
    }  # fmt: skip
    assert promised <= told.keys()
    node = {"name", "hardware", "share", "availability", "load", "flow_ratio", "list"}
    assert all(node <= each.keys() for each in told["nodes"])
    assert len(told["series"]) == 12


def test_every_bar_is_judged_by_its_own_side() -> None:
    good = expectations(load_std=(0.2, 0.08), sick_share=0.05, success=0.995, share_after=0.05, fair_share=0.1)
    assert [bar.is_met for bar in good] == [True] * 4
    bad = expectations(load_std=(0.2, 0.081), sick_share=0.051, success=0.994, share_after=0.049, fair_share=0.1)
    assert [bar.is_met for bar in bad] == [False] * 4


def test_without_a_fault_only_the_spread_is_judged() -> None:
    assert len(outcome(has_fault=False).expectations) == 1
    assert outcome(has_fault=False).are_all_met
    assert not outcome(has_fault=False, load_std=(0.1, 0.09)).are_all_met
