"""Plans for numpy annotations. Imported only when numpy is loaded.

``np.ndarray`` takes any array. ``NDArray[np.float32]`` takes arrays of that dtype in either byte order, and
``NDArray[np.floating]`` those of the kind; another dtype is a mismatch and is not converted, since that would cost a
copy nobody asked for and can lose precision nobody would be told of. Lists are not arrays. A scalar type
(``np.float32``) takes its own scalars and the Python numbers that it can stand for.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import numpy as np

from .mismatch import Mismatch, type_name


def array_plan(annotation: Any) -> Callable[[Any], Any] | None:
    """The plan of an array or numpy scalar annotation; None for anything else."""
    origin = typing.get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return None
    if issubclass(origin, np.ndarray):
        return _array(_item_type(annotation))
    if issubclass(origin, np.generic):
        return _number(origin)
    return None


def _item_type(annotation: Any) -> type[np.generic] | None:
    """The scalar type in ``ndarray[shape, dtype[scalar]]``; None when it is open."""
    arguments = typing.get_args(annotation)
    if len(arguments) < 2:
        return None
    inner = typing.get_args(arguments[1])
    item = (typing.get_origin(inner[0]) or inner[0]) if inner else None
    return item if isinstance(item, type) and issubclass(item, np.generic) and item is not np.generic else None


def _array(item: type[np.generic] | None) -> Callable[[Any], Any]:
    wanted = "numpy.ndarray" if item is None else f"numpy.ndarray of {item.__name__}"

    def convert(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise Mismatch(f"expected {wanted}, got {type_name(type(value))}")
        if item is not None and not issubclass(value.dtype.type, item):
            raise Mismatch(f"expected {wanted}, got numpy.ndarray of {value.dtype.name}")
        return value

    return convert


def _number(kind: type[np.generic]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        made = _made(kind, value)
        if made is None:
            raise Mismatch(f"expected {type_name(kind)}, got {type_name(type(value))}")
        return made

    return convert


def _made(kind: type[np.generic], value: Any) -> Any:
    """A Python value as a numpy scalar, where it is the same number; None where it is not."""
    takes = {
        "b": (bool,),
        "i": (int,),
        "u": (int,),
        "f": (float, int),
        "c": (complex, float, int),
        "U": (str,),
        "S": (bytes,),
    }
    try:
        dtype = np.dtype(kind)
    except TypeError:  # an abstract kind, np.floating
        return None
    if type(value) not in takes.get(dtype.kind, ()):
        return None
    try:
        made = kind(value)
    except (OverflowError, ValueError):
        return None
    is_same = dtype.kind not in "iu" or int(made) == value
    return made if is_same else None


def without_numpy(value: Any) -> Any:
    """*value* with numpy scalars made Python's, through lists and dicts; the same object when there are none."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is list:
        items = [without_numpy(each) for each in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if type(value) is dict:
        pairs = {key: without_numpy(each) for key, each in value.items()}
        return pairs if any(pairs[key] is not value[key] for key in pairs) else value
    return value
