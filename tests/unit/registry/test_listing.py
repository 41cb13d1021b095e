"""A list that is changed in place shows what a list made anew would show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard_registry import Node, ServiceKey, select
from steelyard_registry.listing import Listing

KEY = ServiceKey(interface="ads.Ctr", version="*")

entries = st.builds(
    lambda port, started, version, note: (
        f"{note}-{port}-{started}-{version}",
        Node(interface="ads.Ctr", host="h", port=port, started_at_ms=started, version=version, tags={"note": note}),
    ),
    st.integers(1, 6),
    st.integers(0, 2),
    st.sampled_from(["", "1"]),
    st.sampled_from("abc"),
)
steps = st.tuples(st.lists(entries, max_size=6), st.lists(st.integers(0, 30), max_size=4), st.booleans())


@given(st.lists(steps, max_size=12))
def test_it_shows_what_select_shows(changes: list[tuple[list[tuple[str, Node]], list[int], bool]]) -> None:
    listing, there = Listing(KEY), {}
    shown: tuple[Node, ...] = ()
    for come, going, has_broken in changes:
        gone = [name for number in going for name in sorted(there)[number : number + 1]]
        new: dict[str, Node | None] = dict(come)
        if has_broken:
            new["broken"] = None
        difference = listing.change(new, gone)
        for name in gone:
            there.pop(name, None)
        for name, node in new.items():
            there.setdefault(name, node)
        expected = select(KEY, [node for _, node in sorted(there.items()) if node is not None])
        assert difference.nodes == expected
        assert listing.skipped == sum(node is None for node in there.values())
        assert set(listing.names) == set(there)
        before = {node.identity for node in shown}
        assert {node.identity for node in difference.gone} == before - {node.identity for node in expected}
        assert all(listing.shows(node.identity) for node in expected)
        shown = difference.nodes


def test_many_changes_at_once_end_like_one_by_one() -> None:
    nodes = {f"n{port}": Node(interface="ads.Ctr", host="h", port=port) for port in range(1, 500)}
    at_once, one_by_one = Listing(KEY), Listing(KEY)
    at_once.change(nodes, ())
    for name, node in nodes.items():
        one_by_one.change({name: node}, ())
    gone = list(nodes)[::3]
    left = at_once.change({}, gone)
    for name in gone[:-1]:
        one_by_one.change({}, [name])
    assert one_by_one.change({}, gone[-1:]).nodes == left.nodes
    assert {node.port for node in left.gone} == {nodes[name].port for name in gone}  # type: ignore[union-attr]
    assert len(at_once) == len(nodes) - len(gone)
