"""Who takes calls, by the states of the connections."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.cluster.reach import Reach
from steelyard.wire import ChannelState
from steelyard_registry import Node

READY, CONNECTING, IDLE = ChannelState.READY, ChannelState.CONNECTING, ChannelState.IDLE
UNREACHABLE, DRAINING = ChannelState.UNREACHABLE, ChannelState.DRAINING


def node(port: int, version: str = "") -> Node:
    return Node(interface="ads.Ctr", host="h", port=port, version=version)


def reach(*states: ChannelState) -> Reach:
    found = Reach()
    nodes = [node(port) for port in range(len(states))]
    found.set_nodes(nodes, {each.address: state for each, state in zip(nodes, states, strict=True)})
    return found


def taking(found: Reach, count: int) -> list[int]:
    return [port for port in range(count) if found.takes_calls(f"h:{port}")]


def test_while_one_is_ready_only_ready_ones_take_calls() -> None:
    found = reach(READY, CONNECTING, UNREACHABLE, DRAINING, READY)
    assert taking(found, 5) == [0, 4]
    assert set(found.out) == {node(port).identity for port in (1, 2, 3)}


def test_before_the_first_is_ready_calls_wait_for_those_that_connect() -> None:
    found = reach(CONNECTING, UNREACHABLE, IDLE)
    assert taking(found, 3) == [0, 2]
    assert set(found.out) == {node(1).identity}


def test_when_nothing_can_be_reached_every_node_answers_for_itself() -> None:
    found = reach(UNREACHABLE, UNREACHABLE)
    assert taking(found, 2) == [0, 1]
    assert set(found.out) == set()


def test_states_follow_and_strangers_are_ignored() -> None:
    found = reach(READY, READY)
    found.set_state("h:1", UNREACHABLE)
    found.set_state("h:9", READY)
    assert taking(found, 10) == [0]
    found.set_state("h:1", READY)
    assert taking(found, 10) == [0, 1]
    assert not found.out


def test_two_nodes_at_one_address_share_its_connection() -> None:
    found = Reach()
    nodes = [node(1, "1"), node(1, "2"), node(2)]
    found.set_nodes(nodes, {"h:1": UNREACHABLE, "h:2": READY})
    assert set(found.out) == {nodes[0].identity, nodes[1].identity}


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(list(ChannelState)))))
def test_the_sets_agree_with_a_walk_over_all_states(changes: list[tuple[int, ChannelState]]) -> None:
    states = dict.fromkeys(range(6), IDLE)
    found = reach(*states.values())
    for port, state in changes:
        states[port] = state
        found.set_state(f"h:{port}", state)
    ready = [port for port in states if states[port] is READY]
    waiting = [port for port in states if states[port] in (IDLE, CONNECTING)]
    expected = ready or waiting or list(states)
    assert taking(found, 6) == expected
    assert {node(port).identity for port in states if port not in expected} == set(found.out)
