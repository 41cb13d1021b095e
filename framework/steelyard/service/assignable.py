"""Whether a value of one annotation can stand where another is asked for.

Not a type checker: it answers "no" only where it is certain, since a false alarm would keep a good service from
starting, while what it lets pass is still checked argument by argument in the call.
"""

from __future__ import annotations

import types
import typing
from typing import Any, TypeVar

from steelyard.model import unaliased

# PEP 484: an int may be given where a float is asked for, and a float where a complex is.
_PROMOTIONS = {(int, float), (int, complex), (float, complex)}


def is_assignable(narrow: Any, wide: Any) -> bool:
    """Whether a value annotated *narrow* may be given where *wide* is asked for."""
    narrow, wide = _bare(narrow), _bare(wide)
    if narrow == wide or _is_open(narrow) or _is_open(wide):
        return True
    if _is_union(narrow):
        return all(is_assignable(member, wide) for member in typing.get_args(narrow))
    if _is_union(wide):
        return any(is_assignable(narrow, member) for member in typing.get_args(wide))
    if (narrow, wide) in _PROMOTIONS:
        return True
    own, asked = _origin(narrow), _origin(wide)
    if isinstance(own, type) and isinstance(asked, type):
        return _is_subclass(own, asked) and _same_arguments(narrow, wide)
    return True  # Literal, TypedDict and other special forms: let the call itself decide


def _same_arguments(narrow: Any, wide: Any) -> bool:
    own, asked = typing.get_args(narrow), typing.get_args(wide)
    if not own or not asked or len(own) != len(asked) or _origin(narrow) is not _origin(wide):
        return True
    return all(map(is_assignable, own, asked))


def _bare(annotation: Any) -> Any:
    annotation = unaliased(annotation)
    if annotation is None:
        return type(None)
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.get_args(annotation)[0]
    return annotation


def _is_open(annotation: Any) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, TypeVar | typing.NewType | str)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _origin(annotation: Any) -> Any:
    return typing.get_origin(annotation) or annotation


def _is_subclass(own: type, asked: type) -> bool:
    try:
        return issubclass(own, asked)
    except TypeError:  # a protocol with data members cannot be asked
        return True
