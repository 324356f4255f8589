"""Handlers of the actions on assets."""

from __future__ import annotations

import re
from typing import Final

from datalattice import actions
from datalattice.apps.grid import StoredContent, Venue
from datalattice.cells import Map, Value
from datalattice.errors import Conflict, NoSuchPath, UsageError
from datalattice.service.bodies import FilePieces, piece_stream
from datalattice.service.registry import ServiceCall, Streamed, Upload, handles
from datalattice.service.resuming import stream_name

MEDIA_TYPE: Final = re.compile(
    r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(; ?[\w-]+=[\w.+-]+){0,4}", re.ASCII
)
FILE_NAME_MAX: Final = 255
"""Longest file name that is taken from metadata, in characters."""


def _venue(call: ServiceCall) -> Venue:
    return call.node.venue(storage=call.contents)


@handles(actions.ListAssets)
def list_assets(call: ServiceCall, request: actions.ListAssets) -> actions.AssetPage:
    """List the assets of the venue."""
    if not 1 <= request.limit <= actions.PAGE_MAX:
        raise UsageError(f"limit: 1 to {actions.PAGE_MAX}, got {request.limit}")
    total, items = _venue(call).asset_page(request.offset, request.limit)
    return actions.AssetPage(
        total=total, offset=request.offset, limit=request.limit, items=tuple(items)
    )


@handles(actions.GetAsset)
def get_asset(call: ServiceCall, request: actions.GetAsset) -> actions.AssetMetadata:
    """Return the metadata of an asset."""
    text = _venue(call).asset(request.id)
    if text is None:
        raise NoSuchPath(f"this node holds no asset {request.id.hex()}")
    return actions.AssetMetadata(metadata=text)


@handles(actions.RegisterAsset)
def register_asset(call: ServiceCall, request: actions.RegisterAsset) -> actions.RegisteredAsset:
    """Register an asset."""
    return actions.RegisteredAsset(id=_venue(call).register(request.metadata))


@handles(actions.StatContent)
def stat_content(call: ServiceCall, request: actions.StatContent) -> actions.ContentInfo:
    """Return size, hash, type and name of a content."""
    venue = _venue(call)
    content = _content(venue, request.id)
    declared = venue.metadata(request.id).get("content")
    assert isinstance(declared, Map), "`_content` finds only a declared content"
    media, name = _text(declared.get("contentType")), _text(declared.get("fileName"))
    return actions.ContentInfo(
        id=request.id,
        hash=content.digest,
        size=content.size,
        # Both are a caller's text and become headers of an answer.
        media_type=media if MEDIA_TYPE.fullmatch(media) else "",
        file_name=name if len(name) <= FILE_NAME_MAX and name.isprintable() else "",
    )


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""


def _content(venue: Venue, id: bytes) -> StoredContent:
    """Return a content. Raises: NoSuchPath: the asset declares none, or the node lacks it."""
    try:
        found = venue.content_reader(id)
    # A UsageError too, but its text is for the caller.
    except NoSuchPath:
        raise
    except UsageError as error:
        raise NoSuchPath(f"the asset {id.hex()} has no content: {error}") from error
    if found is None:
        raise NoSuchPath(f"this node does not hold the content of the asset {id.hex()}")
    return found


@handles(actions.GetContent)
def get_content(call: ServiceCall, request: actions.GetContent) -> Streamed[actions.FilePiece]:
    """Return a content in pieces."""
    content = _content(_venue(call), request.id)
    where = f"the content of {request.id.hex()}"
    if request.hash is not None and request.hash != content.digest:
        raise Conflict(
            f"{where} has the hash {content.digest.hex()}, the call expects {request.hash.hex()}"
        )
    name = stream_name(request.action.name, request.id, request.start, request.count)
    pieces = FilePieces(where, content.size, content.digest, content.read, request)
    return piece_stream(pieces, name, request)


@handles(actions.PutContent)
def put_content(call: ServiceCall, request: actions.PutContent) -> Upload[actions.StoredHash]:
    """Begin to store a content."""
    return _ContentUpload(_venue(call), request.id)


class _ContentUpload(Upload[actions.StoredHash]):
    def __init__(self, venue: Venue, id: bytes) -> None:
        # Refuses an unknown asset, or one without a content, before the body comes.
        self._writer = venue.content_writer(id)

    def write(self, piece: bytes) -> None:
        self._writer.write(bytes(piece))

    def finish(self) -> actions.StoredHash:
        self._writer.finish()
        return actions.StoredHash(hash=self._writer.name)

    def close(self) -> None:
        self._writer.close()
