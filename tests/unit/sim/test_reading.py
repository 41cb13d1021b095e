"""Scenario files: what is wrong with one is said by file, place and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.errors import ConfigError
from steelyard.sim import SHIPPED, load_scenario, scenario_names, variants

GOOD = 'name = "mine"\ntext = "."\nnodes = [{ name = "node", count = 3 }]\n'

DESIGNED = {
    "fleet-1-2-4",
    "published-2022-06",
    "published-2022-11",
    "published-2024-06",
    "prequal-ramp",
    "slow-pair",
    "pause",
    "sinkhole",
    "masking",
    "outage-and-return",
    "cold-node",
    "lag-gain",
    "herd",
    "keys-join-leave",
    "reports",
    "promotion-spike",
}


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_designed_scenario_ships_and_three_of_our_own() -> None:
    assert set(scenario_names()) >= DESIGNED
    own = [name for name in scenario_names() if load_scenario(name).text.startswith("Ours, to break ours")]
    assert len(own) >= 3


@pytest.mark.parametrize("name", scenario_names())
def test_what_ships_is_valid_named_after_its_file_and_has_gates(name: str) -> None:
    for _, scenario in variants(name):
        assert scenario.name == name
        assert scenario.gates


def test_the_clone_has_them_where_the_tests_are() -> None:
    assert (Path(__file__).parents[2] / "sim" / "scenarios").resolve() == SHIPPED


def test_axes_make_every_combination_in_order(tmp_path: Path) -> None:
    text = GOOD + (
        '[[axes]]\nname = "load"\nsets = "traffic.load"\nvalues = [0.3, 0.6]\n'
        '[[axes]]\nname = "who"\nsets = "nodes.0.count"\nvalues = [1, 2]\nlabels = ["one", "two"]\n'
    )
    found = variants(written(tmp_path, text))
    assert [dict(named) for named, _ in found] == [
        {"load": 0.3, "who": "one"},
        {"load": 0.3, "who": "two"},
        {"load": 0.6, "who": "one"},
        {"load": 0.6, "who": "two"},
    ]
    assert [(scenario.traffic.load, scenario.nodes[0].count) for _, scenario in found] == [
        (0.3, 1),
        (0.3, 2),
        (0.6, 1),
        (0.6, 2),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "mine.toml: this is not TOML"),
        ('name = "mine"\ntext = "."\n', "missing required field `nodes`"),
        (GOOD + "second = 3\n", "unknown field `second`"),
        (GOOD + "[traffic]\nload = -1\n", r"\$.traffic.load"),
        (GOOD + '[[faults]]\nkind = "melt"\nnodes = "node"\n', r"Invalid enum value 'melt'.*\$.faults\[0\].kind"),
        (GOOD + '[[faults]]\nkind = "slow"\nnodes = "other"\n', "no node group 'other'; there are: node"),
        (GOOD + '[[faults]]\nkind = "slow"\nnodes = "node:1-3"\n', "numbers from 0 to 2"),
        (GOOD + '[[faults]]\nkind = "slow"\nnodes = "node"\nat_s = 5\nuntil_s = 4\n', "ends .* before it begins"),
        (GOOD + '[[gates]]\nname = "g"\nmetric = "success"\n', "needs at_most or at_least"),
        (GOOD + '[[gates]]\nname = "g"\nmetric = "succes"\nat_least = 1\n', "no metric 'succes'"),
        (GOOD + '[[axes]]\nname = "a"\nsets = "faults.0.rate"\nvalues = [1]\n', "there is no such place"),
        (GOOD + "[measure]\nfrom_s = 60\n", "is not before the end"),
        (GOOD + "[traffic]\nload = [[5, 1], [0, 1]]\n", "must ascend"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        variants(written(tmp_path, text))
    assert str(failure.value).startswith("mine.toml: ")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no scenario 'sinkhol'; there are: .*sinkhole"):
        load_scenario("sinkhol")
    with pytest.raises(ConfigError, match="no scenario file"):
        load_scenario("nowhere/mine.toml")
