"""Definitions: the operation that a reference means, here or where another venue defines it.

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
    """Where the definitions of other venues come from."""

    async def named(self, did: str, path: str) -> bytes:
        """Return the asset that a path of a venue's catalogue means now.

        Raises: UsageError: that venue may not be asked. NoSuchPath, Unavailable: as it answers.
        """
        ...

    async def metadata(self, did: str, asset: bytes) -> str:
        """Return the metadata text of an asset as a venue answers; its hash is not checked.

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
        """off_loop: waits for the disk. definitions: None: of this venue alone."""
        self._catalogue: Final = catalogue
        self._storage: Final = storage
        self._off_loop: Final = off_loop
        self._definitions: Final = definitions

    async def find(self, reference: str) -> ResolvedOperation:
        """Return the operation that a reference means.

        Raises: as `Catalogue.resolve` and `Definitions`.
        """
        # On the event loop what is in memory; the rest reads the grid, which may wait for a disk.
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
        """Return an operation that another venue defines; its definition is kept here."""
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
                raise BadFormat(f"{missing.did} answered with another text than {asset.hex()}")
        found = self._catalogue.of_text(asset, text)
        if is_new:  # "that was fetched and can run here"
            await self._off_loop(partial(self._storage.keep, asset, text))
        return replace(found, given=given)
