"""The codes of msgpack's extension types. They are part of the protocol and never change their meaning.

Code -1 is msgpack's own timestamp; we read it and do not write it, because it forgets the UTC offset.
"""

from __future__ import annotations

from typing import Final

DATETIME: Final = 1  # ISO 8601 text, with the UTC offset (to the second) when it is aware
DATE: Final = 2  # ISO 8601 text
TIME: Final = 3  # ISO 8601 text
TIMEDELTA: Final = 4  # days, seconds, microseconds: three signed 32-bit integers
UUID_BYTES: Final = 5  # 16 bytes
DECIMAL: Final = 6  # text
COMPLEX: Final = 7  # two 64-bit floats
BIG_INTEGER: Final = 8  # two's complement, most significant byte first
NDARRAY: Final = 9  # see ndarray.py
NUMPY_SCALAR: Final = 10  # see ndarray.py
