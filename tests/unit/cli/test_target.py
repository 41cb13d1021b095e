"""From ``module.path:Name`` to an object to serve."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steelyard.cli.failure import Failure
from steelyard.cli.target import look_up, make

SOURCE = """
import abc, typing

class Model:
    pass

class Needs:
    def __init__(self, path, device="cpu", *, seed): ...

class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...

class Contract(typing.Protocol):
    def f(self): ...

class Broken:
    def __init__(self): raise OSError("no disk")

class Outer:
    class Inner: pass

made = Model()
def factory(): return made
async def async_factory(): return made
"""

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module into a folder, makes that the current one, and gives the module's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str = SOURCE) -> str:
        name = f"served_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return name

    return write


async def served(target: str) -> object:
    return await make(look_up(target), target)


async def test_classes_objects_and_factories(module: Callable[..., str]) -> None:
    name = module()
    model = sys.modules
    for attribute in ("Model", "made", "factory", "async_factory"):
        assert type(await served(f"{name}:{attribute}")).__name__ == "Model"
    made = model[name].made
    assert await served(f"{name}:made") is await served(f"{name}:factory") is made
    assert await served(f"{name}:async_factory") is made
    assert type(await served(f"{name}:Outer.Inner")).__name__ == "Inner"


@pytest.mark.parametrize(
    ("attribute", "code", "message"),
    [
        ("Modle", 2, "{name} has no 'Modle'; did you mean Model"),
        ("xyzzy", 2, "{name} has no 'xyzzy'; it has: Abstract, Broken, Contract"),
        ("Outer.Nothing", 2, "{name}.Outer has no 'Nothing'"),
        ("Needs", 2, r"{name}:Needs needs arguments \(path, seed\); name a function without arguments that makes it"),
        ("Abstract", 2, "{name}:Abstract is a contract without code; name the class that implements it"),
        ("Contract", 2, "{name}:Contract is a contract without code"),
        ("Broken", 1, "making {name}:Broken failed: OSError: no disk"),
        ("abc", 2, "{name}:abc is a module, not a service"),
    ],
)
async def test_what_cannot_be_served(module: Callable[..., str], attribute: str, code: int, message: str) -> None:
    name = module()
    with pytest.raises(Failure, match=message.format(name=name)) as caught:
        await served(f"{name}:{attribute}")
    assert caught.value.exit_code == code


@pytest.mark.parametrize("target", ["module", "module:", ":Name", ""])
async def test_a_target_of_another_form(target: str) -> None:
    with pytest.raises(Failure, match=r"does not say what to serve; write module\.path:Class") as caught:
        await served(target)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["no_such_module_7", "no_such_module_7.inner", "json.no_such_part"])
async def test_a_module_that_is_not_there_is_asked_wrongly(name: str) -> None:
    with pytest.raises(Failure, match=r"there is no module '.*no_such_") as caught:
        await served(f"{name}:X")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_library_7", "importing .* failed: No module named 'no_such_library_7'"),
        ("x = (", "importing .* failed: SyntaxError"),
        ("raise RuntimeError('no licence')", "importing .* failed: RuntimeError: no licence"),
    ],
)
async def test_a_module_that_fails_went_wrong(module: Callable[..., str], source: str, message: str) -> None:
    with pytest.raises(Failure, match=message) as caught:
        await served(f"{module(source)}:X")
    assert caught.value.exit_code == 1
