"""Actions on the assets of a venue: metadata under its hash, and the content that it declares."""

from __future__ import annotations

from typing import Annotated, Any, Final

from datalattice.actions.action import GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import PAGE, RESUME_NUMBER
from datalattice.actions.drive import FilePiece
from datalattice.actions.formats import HASH_FORMAT, HexFormat
from datalattice.apps.grid import parse_asset_id
from datalattice.protobuf import Field, Message

_ASSETS = "venue/assets"


class AssetFormat(HexFormat):
    """The id of an asset, in all its written forms."""

    def __init__(self) -> None:
        super().__init__("the id of an asset: hex, also as a/<id> or <DID>/a/<id>")

    def read(self, document: Any) -> bytes:
        """Return the id. Raises: UsageError."""
        return parse_asset_id(document)


ASSET: Final = AssetFormat()


class AssetPage(Message, name="datalattice.v1.AssetPage"):
    """Ids of assets, in increasing order. total: of all assets. offset, limit: of this page."""

    total: Annotated[int, Field(1, "uint64")] = 0
    offset: Annotated[int, Field(2, "uint64")] = 0
    limit: Annotated[int, Field(3, "uint32")] = 0
    items: Annotated[tuple[bytes, ...], Field(4, codec=HASH_FORMAT)] = ()


# By `offset` and with a total, as other implementations of venues have it.
@action("venue.assets", ActionKind.QUERY, "r", _ASSETS, GET("/assets"), is_tool=True)
class ListAssets(ActionRequest[AssetPage], name="datalattice.v1.ListAssetsRequest"):
    """List the assets of this node's venue. limit: up to 1,000. offset: how many to skip."""

    offset: Annotated[int, Field(1, "uint64")] = 0
    limit: Annotated[int, Field(2, "uint32")] = PAGE


class AssetMetadata(Message, name="datalattice.v1.AssetMetadata"):
    """The metadata of an asset: JSON, exactly as it was registered."""

    metadata: Annotated[str, Field(1)] = ""


@action(
    "venue.asset", ActionKind.QUERY, "r", _ASSETS, GET("/assets/{id}", "metadata"), is_tool=True
)
class GetAsset(ActionRequest[AssetMetadata], name="datalattice.v1.GetAssetRequest"):
    """Return the metadata of an asset, of any venue that this node holds.

    Raises: NoSuchPath: it is not here.
    """

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""


class RegisteredAsset(Message, name="datalattice.v1.RegisteredAsset"):
    """The id of an asset: the SHA-256 of its metadata."""

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""


# Registering the same text again changes nothing.
@action("venue.register", ActionKind.EFFECT, "w", _ASSETS, POST("/assets", 201, "metadata", "id"))
class RegisterAsset(ActionRequest[RegisteredAsset], name="datalattice.v1.RegisterAssetRequest"):
    """Register an asset. metadata: the text of one JSON object, kept exactly as it is.

    Raises: UsageError: it is not one JSON object.
    """

    metadata: Annotated[str, Field(1)] = ""


class ContentInfo(Message, name="datalattice.v1.ContentInfo"):
    """The size, SHA-256, type and name of the content of an asset.

    media_type, file_name: from the metadata; "" if it has none or an invalid one.
    """

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""
    size: Annotated[int, Field(3, "uint64")] = 0
    media_type: Annotated[str, Field(4)] = ""
    file_name: Annotated[str, Field(5)] = ""


@action("venue.content", ActionKind.QUERY, "r", _ASSETS, GET("/assets/{id}/info"), is_tool=True)
class StatContent(ActionRequest[ContentInfo], name="datalattice.v1.StatContentRequest"):
    """Return size, hash, type and file name of the content of an asset.

    Raises: NoSuchPath: the asset or its content is not on this node, or it has no content.
    """

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""


@action("venue.download", ActionKind.STREAM, "r", _ASSETS, GET("/assets/{id}/content"))
class GetContent(ActionRequest[FilePiece], name="datalattice.v1.GetContentRequest"):
    """Return the content of an asset in pieces, `count` bytes from `start` on; count 0: to its end.

    hash: the SHA-256 that the content must have, else: Conflict. inline: a browser shows it instead
    of saving it. resume: of the last piece received.
    Raises: as `venue.content`. Corruption: the stored content is damaged.
    """

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""
    start: Annotated[int, Field(2, "uint64")] = 0
    count: Annotated[int, Field(3, "uint64")] = 0
    hash: Annotated[bytes | None, Field(4, codec=HASH_FORMAT)] = None
    inline: Annotated[bool, Field(5)] = False
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""

    def about(self) -> StatContent:
        """Return the request for its size, hash and type."""
        return StatContent(id=self.id)


class StoredHash(Message, name="datalattice.v1.StoredHash"):
    """The SHA-256 of the stored content."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""


@action(
    "venue.upload",
    ActionKind.UPLOAD,
    "w",
    _ASSETS,
    PUT("/assets/{id}/content", body="data", answer="hash"),
)
class PutContent(ActionRequest[StoredHash], name="datalattice.v1.PutContentRequest"):
    """Store the content of an asset, whose metadata declares its SHA-256. Durable when it returns.

    Raises: NoSuchPath: there is no such asset. UsageError: it declares no content, or another hash.
    LimitExceeded: the content is longer than this venue accepts.
    """

    id: Annotated[bytes, Field(1, codec=ASSET)] = b""
    data: Annotated[bytes, Field(2)] = b""
