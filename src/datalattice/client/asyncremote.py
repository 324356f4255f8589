"""Async remote: how the door clients for an event loop repeat a call.

Source: docs/clients.md.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TypeVar

from datalattice.actions import ActionRequest
from datalattice.client.calling import AsyncClient
from datalattice.client.remote import CallPolicy
from datalattice.errors import DataLatticeError
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class AsyncRemoteClient(CallPolicy, AsyncClient, ABC):
    """A client of a door, for one event loop."""

    @abstractmethod
    async def _call(self, request: ActionRequest[R], request_id: str | None = None) -> R:
        """Send one request; return its result."""

    async def call(self, request: ActionRequest[R], *, request_id: str | None = None) -> R:
        """Perform an action; as `Client.call`."""
        attempts = self._attempts(request, request_id)
        if attempts is None:
            return await self._call(request)
        while True:
            try:
                return await self._call(request, attempts.id)
            except DataLatticeError as error:
                pause_s = attempts.pause_after(error)
            await asyncio.sleep(pause_s)
