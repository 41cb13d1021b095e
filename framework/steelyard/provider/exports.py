"""What a provider exports: each service with its life, and its entry in the registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from steelyard.errors import ConfigError, RegistryUnavailable
from steelyard.model import ServiceSpec
from steelyard.service import BoundMethod
from steelyard_registry import MalformedUrl, Node, NodeState, Registration, Registry, RegistryError

from .dispatch import Dispatcher
from .life import Announcement, Hooks, Life

log = logging.getLogger(__name__)


class Export:
    """One service. ``announcement`` is None until the registry has it."""

    def __init__(self, spec: ServiceSpec, hooks: Hooks, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.life = Life(spec.key, hooks, self._tell)
        self.announcement: Announcement | None = None
        self._changed = changed

    def _tell(self, state: NodeState) -> None:
        self._changed()
        if self.announcement is not None:
            self.announcement.tell(state)

    async def close(self) -> None:
        await self.life.close()
        if self.announcement is not None:
            await self.announcement.close()


class Exports:
    """All of them. ``nodes`` as registered, ``states`` as they are now; ``changed`` is called when one of these has
    changed, on the loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.changed: Callable[[], None] = lambda: None
        self._exports: list[Export] = []
        self._left: list[ServiceSpec] = []

    @property
    def nodes(self) -> tuple[Node, ...]:
        found = (export.announcement for export in self._exports)
        return tuple(announcement.registration.node for announcement in found if announcement is not None)

    @property
    def states(self) -> Mapping[str, NodeState]:
        return {export.spec.key: export.life.state for export in self._exports}

    @property
    def specs(self) -> tuple[ServiceSpec, ...]:
        return tuple(export.spec for export in self._exports)

    @property
    def served(self) -> Mapping[str, bool]:
        """Whether calls are taken, as health checks ask it: by service key, by interface (any version or group of it),
        and under the empty name for the provider as a whole, which is well while it serves anything."""
        found: dict[str, bool] = {"": False}
        for export in self._exports:
            is_ready = export.life.state is NodeState.READY
            for name in ("", export.spec.name, export.spec.key):
                found[name] = found.get(name, False) or is_ready
        for spec in self._left:  # known, and not served any more
            found |= {name: False for name in (spec.name, spec.key) if name not in found}
        return found

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why services are failed."""
        return {export.spec.key: export.life.reason for export in self._exports if export.life.reason}

    async def add(
        self,
        registry: Registry,
        spec: ServiceSpec,
        methods: Mapping[str, BoundMethod],
        hooks: Hooks,
        node: Callable[[NodeState], Node],
        tokens: Sequence[str] = (),
    ) -> Node:
        """Registers a service as what it is, brings it to ready, and returns its node. What fails leaves nothing."""
        export = Export(spec, hooks, self.changed)
        self._dispatcher.add(spec, methods, export.life, tokens)
        self._exports.append(export)
        try:
            registration = await register(registry, node(export.life.first_state))
            export.announcement = Announcement(registration)
            await export.life.begin()
            await export.announcement.told()
            self.changed()
        except BaseException:
            if export in self._exports:  # not closed in the meantime
                self._exports.remove(export)
                self._dispatcher.remove(spec)
                self.changed()
                await _end(export)
            raise
        return registration.node

    async def leave(self) -> None:
        """Says "draining", and takes every entry out. Raises nothing: accepted calls are finished in any case."""
        exports, self._exports = self._exports, []
        for export in exports:
            export.life.drain()
            self._left.append(export.spec)
        self.changed()
        await asyncio.gather(*(_end(export) for export in exports))


async def _end(export: Export) -> None:
    await export.close()
    if export.announcement is not None:
        await leave(export.announcement.registration)


async def register(registry: Registry, node: Node) -> Registration:
    """Raises ConfigError for a node that cannot be published, RegistryUnavailable when the registry refuses."""
    try:
        return await registry.register(node)
    except MalformedUrl as error:
        raise ConfigError(f"{node.identity} cannot be registered: {error}") from error
    except RegistryError as error:
        raise RegistryUnavailable(f"{node.identity} could not be registered: {error}") from error


async def leave(registration: Registration) -> None:
    """Says "draining" before it goes: a registry then knows that an empty list is meant, and not its own fault. Raises
    nothing: the accepted calls are finished in any case."""
    try:
        await registration.update(replace(registration.node, state=NodeState.DRAINING))
    except Exception as error:
        log.debug("%s could not be marked as draining: %s", registration.node.identity, error)
    try:
        await registration.withdraw()
    except Exception as error:
        log.warning("%s could not be withdrawn from the registry: %s", registration.node.identity, error)
