"""Definitions: finds the operation of a reference, also one that another venue defines.

Source: docs/design/venue.md "References".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from datalattice.apps.grid import asset_id
from datalattice.errors import BadFormat
from datalattice.service.venue.catalogue import Catalogue, DefinedElsewhere, ResolvedOperation
from datalattice.service.venue.records import JobStorage


class Definitions(Protocol):
    """Reads definitions of other venues."""

    async def named(self, did: str, path: str) -> bytes:
        """Return the asset that a path of a venue's catalogue names now.

        Raises: UsageError: this node may not call that venue. NoSuchPath, Unavailable: its answer.
        """
        ...

    async def metadata(self, did: str, asset: bytes) -> str:
        """Return the metadata text of an asset from a venue; the caller checks its hash.

        Raises: as `named`. BadFormat: it is not text.
        """
        ...


class OperationFinder:
    """Finds operations by reference."""

    def __init__(
        self,
        catalogue: Catalogue,
        storage: JobStorage,
        off_loop: Callable[[Callable[[], Any]], Awaitable[Any]],
        definitions: Definitions | None,
    ) -> None:
        """off_loop: runs calls that wait for the disk. definitions: None: only of this venue."""
        self._catalogue: Final = catalogue
        self._storage: Final = storage
        self._off_loop: Final = off_loop
        self._definitions: Final = definitions

    async def find(self, reference: str) -> ResolvedOperation:
        """Return the operation of a reference.

        Raises: as `Catalogue.resolve` and `Definitions`.
        """
        # Paths are in memory; all else reads the grid, which may wait for the disk.
        found = self._catalogue.known(reference)
        if found is not None:
            return found
        try:
            found = await self._off_loop(partial(self._catalogue.resolve, reference))
        except DefinedElsewhere as missing:
            if self._definitions is None:
                raise
            found = await self._fetched(missing, reference, self._definitions)
        assert found is not None
        return found

    async def _fetched(
        self, missing: DefinedElsewhere, reference: str, definitions: Definitions
    ) -> ResolvedOperation:
        """Return an operation that another venue defines; keep its definition."""
        asset, given = missing.asset, ""
        if asset is None:
            # "looked up there each time, since a name may come to mean another asset"
            asset, given = await definitions.named(missing.did, missing.path), reference
        text = await self._off_loop(partial(self._storage.metadata, asset))
        is_new = text is None
        if text is None:
            text = await definitions.metadata(missing.did, asset)
            # "its hash compared with the id"
            if asset_id(text) != asset:
                raise BadFormat(f"{missing.did} sent a text whose hash is not {asset.hex()}")
        found = self._catalogue.of_text(asset, text)
        if is_new:  # "that was fetched and can run here"
            await self._off_loop(partial(self._storage.keep, asset, text))
        return replace(found, given=given)
