"""``python -m steelyard``: the same command line as ``steelyard``, where no script is on the PATH."""

from __future__ import annotations

from steelyard.cli import main

if __name__ == "__main__":
    main()
