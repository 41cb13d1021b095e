"""From ``module.path:Name`` to an object to serve.

The name may be a class that needs no arguments, an object that is made already, or a function that makes one (also an
``async`` one): whatever else a model needs to be made (a file, a device) is then the function's business, not an
option of the command line's.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .failure import Failure, usage


def look_up(target: str) -> Any:
    """What *target* names. Fails, saying which part is wrong; the current directory is searched first."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise usage(f"{target!r} does not say what to serve; write module.path:Class")
    value: Any = _import(module_name)
    walked = module_name
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise usage(f"{walked} has no {name!r}{_instead(value, name)}") from None
        walked = f"{walked}.{name}"
    return value


async def make(value: Any, target: str) -> Any:
    """The object to serve: *value* itself, or what it makes when called without arguments."""
    if isinstance(value, ModuleType):
        raise usage(f"{target} is a module, not a service; write module.path:Class")
    if not isinstance(value, type) and not inspect.isroutine(value):
        return value
    _check_callable(value, target)
    try:
        made = value()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise Failure(f"making {target} failed: {type(error).__name__}: {error}") from error


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise usage(
                f"there is no module {missing!r}, neither in the current directory nor among the installed packages"
            ) from error
        raise Failure(f"importing {name} failed: {error}") from error
    except Exception as error:  # a module may raise anything while it is imported
        raise Failure(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _check_callable(value: Callable[..., Any], target: str) -> None:
    if inspect.isabstract(value) or getattr(value, "_is_protocol", False):
        raise usage(f"{target} is a contract without code; name the class that implements it")
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # some built-in types do not tell; calling them will
        return
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]
    if needed:
        raise usage(f"{target} needs arguments ({', '.join(needed)}); name a function without arguments that makes it")


def _instead(owner: Any, name: str) -> str:
    """What may have been meant: names like it, or else the classes and functions that are there."""
    names = [each for each in vars(owner) if not each.startswith("_")] if hasattr(owner, "__dict__") else []
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    if not isinstance(owner, ModuleType):
        return ""
    own = sorted(each for each in names if getattr(vars(owner)[each], "__module__", None) == owner.__name__)
    return f"; it has: {', '.join(own[:8])}" if own else ""
