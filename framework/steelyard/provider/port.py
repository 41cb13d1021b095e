"""Whether a port is free, asked before gRPC asks.

gRPC's core writes a line of its own to stderr when it cannot have a port (``add_port.cc``), past every logger, and only
an environment variable read when it is loaded would silence it. A library does not set those. So the usual reason, a
port that another process has, is found here first. Whatever else is wrong with an address, the listener says.
"""

from __future__ import annotations

import contextlib
import errno
import socket

from steelyard.errors import ListenError


def require_free(host: str, port: int) -> None:
    """Raises ListenError when every address of *host* has a listener at *port*. May look *host* up: not on the loop."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return
    taken = None
    for family, kind, protocol, _, address in found:
        with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
            # As a server that is started again: connections of the last one that still close are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return
                taken = error
    if taken is not None:
        shown = f"[{host}]" if ":" in host else host
        raise ListenError(
            f"cannot listen on {shown}:{port}: another process (another provider?) has the port. Choose another port, "
            "or port 0 for any free one."
        ) from taken
