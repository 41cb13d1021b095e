"""What the packages import is what pyproject.toml declares, no less and no more; and each has its reason on paper."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions

from architecture.tree import PACKAGES, ROOT, product_modules, pyproject


def normalised(requirement: str) -> str:
    """The distribution's normalised name (PEP 503) in a requirement like ``grpcio>=1.66``."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, f"not a requirement: {requirement!r}"
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def declared(*, with_tools: bool) -> dict[str, str]:
    """Name -> the list that it stands in: core, an extra, or build."""
    data = pyproject()
    lists = {"core": data["project"]["dependencies"], **data["project"]["optional-dependencies"]}
    lists["build"] = data["build-system"]["requires"]
    tools = () if with_tools else ("dev", "build")
    return {normalised(one): where for where, names in lists.items() if where not in tools for one in names}


def imported() -> dict[str, set[str]]:
    """Top-level third-party import name -> the modules of ours that import it, also inside functions."""
    found: dict[str, set[str]] = {}
    for module in product_modules():
        for node in ast.walk(module.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names}:
                if name not in PACKAGES and name not in sys.stdlib_module_names:
                    found.setdefault(name, set()).add(module.where)
    return found


def distributions_of(name: str) -> set[str]:
    return {normalised(distribution) for distribution in packages_distributions().get(name, [])}


def reasons() -> dict[str, str]:
    """The table under "Dependencies" in docs/design.md: name -> reason."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = re.search(r"^## Dependencies\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, 'docs/design.md has no section "Dependencies"'
    rows = re.findall(r"^\| `([^`]+)` \|.*\|([^|]*)\|$", section.group(1), re.MULTILINE)
    return {normalised(name): reason.strip() for name, reason in rows}


def test_every_import_is_declared() -> None:
    known = set(declared(with_tools=False))
    undeclared = {name: where for name, where in imported().items() if not distributions_of(name) & known}
    assert not undeclared, f"imported, but neither in dependencies nor in an extra of pyproject.toml: {undeclared}"


def test_every_core_dependency_is_imported() -> None:
    used = {distribution for name in imported() for distribution in distributions_of(name)}
    unused = sorted(name for name, where in declared(with_tools=False).items() if where == "core" and name not in used)
    assert not unused, f"every user installs these, and no module imports them: {unused}"


def test_every_dependency_has_its_reason() -> None:
    written = reasons()
    assert set(written) == set(declared(with_tools=True)), "docs/design.md and pyproject.toml name different packages"
    thin = [name for name, reason in written.items() if len(reason) < 20]
    assert not thin, f"a reason of fewer than 20 characters is none: {thin}"


def test_constraints_are_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    odd = [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_]+( ; [^:/@]+)?", line)]
    assert not odd, f"not of the form name==version: {odd}"
    unpinned = set(declared(with_tools=True)) - {normalised(line) for line in pins}
    assert not unpinned, f"not pinned, run ./dev lock: {sorted(unpinned)}"
