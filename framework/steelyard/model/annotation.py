"""Type aliases looked through, wherever an annotation's kind decides something.

``type Items = AsyncIterator[int]`` (Python 3.12) and numpy's ``NDArray`` (an alias of that kind since numpy 2.5) hide
what they stand for from ``typing.get_origin``.
"""

from __future__ import annotations

import typing
from typing import Any


def unaliased(annotation: Any) -> Any:
    """What *annotation* stands for; itself when it is no alias."""
    origin = typing.get_origin(annotation) or annotation
    while type(origin).__name__ == "TypeAliasType":
        arguments = typing.get_args(annotation)
        annotation = origin.__value__[arguments] if arguments else origin.__value__
        origin = typing.get_origin(annotation) or annotation
    return annotation
