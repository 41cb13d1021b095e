"""What every gRPC client expects of a server beside its own services: health, load, reflection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steelyard.wire import HealthService, OpenOrcaService

from .exports import Exports
from .reflection import reflection_handlers


class StandardServices:
    """*load* gives the latest report in ORCA's form. Without *describes* there is no reflection: a provider that asks
    who calls does not tell everybody what there is. ``handlers`` are for the Listener."""

    def __init__(self, exports: Exports, load: Callable[[], bytes], *, describes: bool = True) -> None:
        health = HealthService(lambda: exports.served)
        exports.changed = health.changed
        self.handlers: tuple[Any, ...] = (
            health.handler,
            OpenOrcaService(load).handler,
            *(reflection_handlers(lambda: exports.specs) if describes else ()),
        )
