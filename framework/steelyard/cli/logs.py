"""Logging of a command: everything to stderr, so that stdout holds the answer and nothing else."""

from __future__ import annotations

import logging
import os

from .failure import usage
from .options import LOG_LEVELS


def log_to_stderr(level: str) -> None:
    """Root logging at *level* (a name of LOG_LEVELS). Third-party clients speak only at debug."""
    name = level.strip().lower()
    if name not in LOG_LEVELS:
        raise usage(f"--log-level takes {', '.join(LOG_LEVELS)}, not {level!r}")
    logging.basicConfig(level=name.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True)
    if name == "debug":
        return
    # gRPC's C core writes to stderr by itself, also what is no error; it reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # It tells of every attempt to connect again; our registry says the same once, in its own words.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    if name == "info":
        # What goes well there, the provider says too: one line a service.
        logging.getLogger("steelyard_registry").setLevel(logging.WARNING)
