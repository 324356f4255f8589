"""Adapter `asset`: registers results of jobs, and assets of other venues, as assets of this venue.

Both write to this venue, so the caller needs the right to register assets, as over REST.

Source: docs/venue-operations.md "Assets".
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from datalattice.actions import RegisterAsset
from datalattice.apps.grid import (
    Venue,
    asset_id,
    declared_hash,
    parse_asset_id,
    read_metadata,
    split_did_url,
)
from datalattice.errors import BadFormat, NoSuchPath, UsageError
from datalattice.service.venue import (
    JobCaller,
    JobContext,
    Json,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
    caller_of,
)
from datalattice.service.venue.adapters.inputs import members, sub_operation, text_member
from datalattice.service.venue.adapters.tables import MayDo
from datalattice.service.venue.adapters.venues import MayCall, anybody

PINS_AT_ONCE: Final = 2
"""Most contents that are fetched at once: each is in memory until it is stored."""

_KINDS: Final[Mapping[str, tuple[str, dict[str, Json], list[Json]]]] = {
    "store": (
        "Registers an asset, and stores its content if it is given",
        {"metadata": {"type": "object"}, "content": {"type": "string"}},
        ["metadata"],
    ),
    "pin": (
        "Registers an asset of another venue here, with its content",
        {"asset": {"type": "string"}},
        ["asset"],
    ),
}


class AssetSource(Protocol):
    """Reads assets of other venues; the caller checks their hashes."""

    async def metadata(self, did: str, asset: bytes) -> str:
        """Return the metadata text of an asset, from its venue."""
        ...

    async def content(self, did: str, asset: bytes) -> bytes:
        """Return the content of an asset, from its venue."""
        ...


class AssetAdapter(PlainAdapter):
    """Runs `asset:store` and `asset:pin`.

    venue: returns that of this node. may: raises for callers who may not register assets. source:
    None: only assets that this node holds can be pinned. may_call: raises for callers on whose
    behalf no other venue is called.
    """

    name = "asset"

    def __init__(
        self,
        venue: Callable[[], Venue],
        may: MayDo,
        source: AssetSource | None = None,
        *,
        may_call: MayCall = anybody,
    ) -> None:
        self._venue: Final = venue
        self._may: Final = may
        self._source: Final = source
        self._may_call: Final = may_call
        self._pins: Final = asyncio.Semaphore(PINS_AT_ONCE)

    def operations(self) -> Sequence[VenueOperation]:
        """Return the two operations; they may run again, as an asset is named by its hash."""
        return [
            VenueOperation(
                f"asset/{kind}",
                {
                    "name": f"Asset {kind}",
                    "description": description,
                    "operation": {
                        "adapter": f"asset:{kind}",
                        "input": {"type": "object", "properties": known, "required": needed},
                    },
                },
                recover=RecoveryRule.RETRY,
            )
            for kind, (description, known, needed) in _KINDS.items()
        ]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a malformed input."""
        kind = sub_operation(meta, _KINDS)
        given = members(input, _KINDS[kind][1])
        if kind == "store":
            _stored(given)
        else:
            _named(text_member(given, "asset"))

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Store or pin an asset; return its `id`, and the `sha256` and `bytes` of its content.

        Raises: Unauthorized: the caller may not register assets. NoSuchPath: no venue has it.
                BadFormat: the metadata or content has another hash.
        """
        kind = sub_operation(meta, _KINDS)
        given = members(input, _KINDS[kind][1])
        # Checked at the run, not when the job was made: rules may have changed.
        await asyncio.to_thread(self._may, caller_of(job), RegisterAsset())
        if kind == "store":
            return await asyncio.to_thread(self._put, *_stored(given))
        async with self._pins:
            return await self._pin(caller_of(job), *_named(text_member(given, "asset")))

    async def _pin(self, caller: JobCaller, did: str | None, asset: bytes) -> Json:
        venue = self._venue()
        text, content = await asyncio.to_thread(venue.asset, asset), None
        is_here = text is not None
        if text is None:
            if did is None or self._source is None:
                raise NoSuchPath(f"this node holds no asset {asset.hex()}")
            # "The other venue sees the DID of this venue" (docs/grid.md), so a rule says for whom
            # it is called.
            self._may_call(caller)
            text = await self._source.metadata(did, asset)
            # The id is the hash of the text, so the other venue needs no trust.
            if asset_id(text) != asset:
                raise BadFormat(f"{did} sent a text whose hash is not {asset.hex()}")
        if "content" in read_metadata(text):
            declared = declared_hash(read_metadata(text))
            content = await asyncio.to_thread(venue.content, asset) if is_here else None
            if content is None:
                if did is None or self._source is None:
                    raise NoSuchPath(
                        f"this node does not hold the content of the asset {asset.hex()}"
                    )
                self._may_call(caller)
                content = await self._source.content(did, asset)
            # "get content, hash, compare with `content.sha256`, refuse on difference; then store"
            if hashlib.sha256(content).digest() != declared:
                raise BadFormat(
                    f"the content of {asset.hex()} from {did or 'this node'} has another hash than "
                    f"the declared one, {declared.hex()}"
                )
        return await asyncio.to_thread(self._put, text, content)

    def _put(self, text: str, content: bytes | None) -> Json:
        """Register an asset and store its content; both are durable when this returns."""
        venue = self._venue()
        asset = venue.register(text)
        found: dict[str, Json] = {"id": asset.hex()}
        if content is not None:
            found |= {"sha256": venue.put_content(asset, content).hex(), "bytes": len(content)}
        return found


def _stored(given: Mapping[str, Json]) -> tuple[str, bytes | None]:
    """Return the metadata text and the content in an input of `store`. Raises: UsageError."""
    metadata = given.get("metadata")
    if not isinstance(metadata, dict):
        raise UsageError(f"`metadata` is an object, got {metadata!r}"[:200])
    if given.get("content") is None:
        return _text(metadata), None
    content = text_member(given, "content").encode()
    declared = metadata.get("content", {})
    if not isinstance(declared, dict):
        raise UsageError(f"`metadata.content` is an object, got {declared!r}"[:200])
    # "store takes metadata and optional content and adds its hash"
    digest = hashlib.sha256(content).hexdigest()
    if declared.get("sha256", digest) != digest:
        raise UsageError(f"`metadata.content.sha256` is the content's hash, {digest}, or absent")
    return _text({**metadata, "content": {**declared, "sha256": digest}}), content


def _text(metadata: Mapping[str, Json]) -> str:
    # Sorted and without blanks: equal metadata gives one text, and so one asset id.
    return json.dumps(metadata, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _named(reference: str) -> tuple[str | None, bytes]:
    """Return the DID of the venue in a reference, None without one, and the id of the asset."""
    did = split_did_url(reference).did if reference.startswith("did:") else None
    return did, parse_asset_id(reference)
