"""Maintenance: the tasks of a node: healing, collecting garbage, importing, rebuilding.

Source: docs/node.md "Control socket".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Final

from datalattice.actions import (
    CollectedGarbage,
    CollectGarbage,
    Empty,
    HealedStore,
    HealStore,
    ImportedRoot,
    ImportRoot,
    RebuildState,
    StartTask,
)
from datalattice.client import collect
from datalattice.client.network import HealingSources, healed_store
from datalattice.client.replicas import import_into
from datalattice.errors import UsageError
from datalattice.node.server import NodeServer
from datalattice.node.tasks import NodeTask, NodeTasks
from datalattice.node.weaverhosts import WeaverHosts
from datalattice.protobuf import Message
from datalattice.store.gc import GRACE_MS
from datalattice.sync import Absorbed, Offer

HostedStores = Callable[[], WeaverHosts]
"""Returns the Weaver stores. Raises: NoSigningKey."""

Reporting = Callable[[], AbstractContextManager[None]]
"""Returns a context in which a fault of the program becomes an error for the caller."""


class Maintenance:
    """Begins the tasks of one node. Lives on its event loop."""

    def __init__(self, node: NodeServer, stores: HostedStores, reporting: Reporting) -> None:
        self._node: Final = node
        self._stores: Final = stores
        self._reporting: Final = reporting
        self.tasks: Final = NodeTasks()

    def start(self, request: StartTask, caller: str) -> NodeTask:
        """Begin the task of a request, or join an equal one.

        Raises: UsageError: it names no task or several, or lacks a path. Backpressure: too many
                tasks have not ended.
        """
        asked = dict(_asked(request))
        if len(asked) != 1:
            names = ", ".join(field.name for field in request.declared())
            raise UsageError(f"a task is one of {names}; got {', '.join(asked) or 'none'}")
        ((kind, what),) = asked.items()
        if isinstance(what, ImportRoot) and not what.path:
            raise UsageError("import_root needs the path of an archive or a store")

        async def run(task: NodeTask) -> Message:
            with self._reporting():
                if isinstance(what, HealStore):
                    return await self._heal(what, task)
                if isinstance(what, CollectGarbage):
                    return await self._collect(what, task)
                if isinstance(what, ImportRoot):
                    return await self._import(what, task)
                assert isinstance(what, RebuildState)
                stores = self._stores().stores
                await asyncio.to_thread(lambda: stores.open(what.id).rebuild(task.on_progress))
                return Empty()

        return self.tasks.begin(kind, what.encode(), caller, run)

    async def _heal(self, request: HealStore, task: NodeTask) -> HealedStore:
        with HealingSources(list(request.addresses), request.folder or None) as sources:
            healing = await self._node.heal(sources, task.on_progress)
            return healed_store(healing, sources)

    async def _collect(self, request: CollectGarbage, task: NodeTask) -> CollectedGarbage:
        done = await asyncio.to_thread(
            collect,
            self._node.store,
            task.on_progress,
            grace_ms=GRACE_MS if request.grace_ms is None else request.grace_ms,
            plan=request.plan or None,
            is_dry=request.dry_run,
        )
        if not request.dry_run:
            await self._node.housekeeper.collected(done)
        return CollectedGarbage(**asdict(done))

    async def _import(self, request: ImportRoot, task: NodeTask) -> ImportedRoot:
        housekeeper = self._node.housekeeper
        loop = asyncio.get_running_loop()

        def absorb(offer: Offer) -> Absorbed:  # called on the thread of the import
            work = housekeeper.merge_import(offer, is_known=request.known)
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        return await asyncio.to_thread(
            import_into,
            self._node.store,
            request.path,
            pin=request.pin,
            merge=request.merge,
            taking=absorb,
            progress=task.on_progress,
        )


def _asked(request: StartTask) -> Iterator[tuple[str, Message]]:
    for field in request.declared():
        what = getattr(request, field.name)
        if what is not None:
            yield field.name, what
