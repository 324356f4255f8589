"""Actions on values and on paths of the lattice: read, merge, pin."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import DELETE, GET, POST, PUT, ActionKind, ActionRequest, action
from datalattice.actions.common import PAGE, RESUME_NUMBER, Empty
from datalattice.actions.formats import CELL_FORMAT, HASH_FORMAT, HEX_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message


class Stored(Message, name="datalattice.v1.Stored"):
    """A stored value. is_new: it was absent before. missing: hashes of absent cells below it."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    is_new: Annotated[bool, Field(2)] = False
    missing: Annotated[tuple[bytes, ...], Field(3, codec=HASH_FORMAT)] = ()


# EFFECT: a value is named by its hash, so to store it again changes nothing.
@action("values.put", ActionKind.EFFECT, "w", "values", POST("/values", 201, "value"), is_tool=True)
class PutValue(ActionRequest[Stored], name="datalattice.v1.PutValueRequest"):
    """Store a value to be read by its hash, and pin it for the caller. label: of the pin.

    The next collection of garbage removes a value that neither a pin nor the lattice holds.
    """

    value: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    label: Annotated[str, Field(2)] = ""


class FoundValue(Message, name="datalattice.v1.FoundValue"):
    """A value and its hash."""

    value: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""


@action("values.get", ActionKind.QUERY, "r", "values", GET("/values/{hash}"), is_tool=True)
class GetValue(ActionRequest[FoundValue], name="datalattice.v1.GetValueRequest"):
    """Return the value of a hash, or the value at a path inside it, such as `deep/0`.

    path: keys with `/` between them. Raises: NoSuchPath.
    """

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    path: Annotated[str, Field(2)] = ""


class MissingCells(Message, name="datalattice.v1.MissingCells"):
    """Hashes of cells that the store lacks, 254 at most."""

    missing: Annotated[tuple[bytes, ...], Field(1, codec=HASH_FORMAT)] = ()


# "As many as one request of the node protocol names": a client fetches them with one request.
@action("values.missing", ActionKind.QUERY, "r", "values", GET("/values/{hash}/missing"))
class FindMissing(ActionRequest[MissingCells], name="datalattice.v1.FindMissingRequest"):
    """Return the hashes of the cells below a value that the store lacks."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""


class Encoding(Message, name="datalattice.v1.Encoding"):
    """A value's encoding with all its cells, and its hash."""

    data: Annotated[bytes, Field(1, codec=HEX_FORMAT)] = b""
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""


# Open to all: it reveals nothing about the node. POST, because a value may be longer than a URL.
@action("values.encode", ActionKind.QUERY, "r", "", POST("/encode", body="value"))
class EncodeValue(ActionRequest[Encoding], name="datalattice.v1.EncodeValueRequest"):
    """Return the encoding and hash of a value; nothing is stored."""

    value: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None


@action("values.decode", ActionKind.QUERY, "r", "", POST("/decode"))
class DecodeValue(ActionRequest[FoundValue], name="datalattice.v1.DecodeValueRequest"):
    """Return the value of an encoding; nothing is stored. Raises: BadFormat."""

    data: Annotated[bytes, Field(1, codec=HEX_FORMAT)] = b""


class PathValue(Message, name="datalattice.v1.PathValue"):
    """The value at a path of the lattice, its hash, and the hash of the root."""

    value: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""
    root_hash: Annotated[bytes, Field(3, codec=HASH_FORMAT)] = b""


@action(
    "lattice.get", ActionKind.QUERY, "r", "lattice/{path}", GET("/lattice/{path...}"), is_tool=True
)
class GetPath(ActionRequest[PathValue], name="datalattice.v1.GetPathRequest"):
    """Return the value at a path of the lattice, such as `kv/0x.../value/shop`.

    A path is keys with `/` between them. In the sections `kv`, `queue` and `fs` the data of each
    owner is under its public key. at: a former root: `HEAD~1`, a pin, a hash or a time.
    Raises: NoSuchPath.
    """

    path: Annotated[str, Field(1)] = ""
    at: Annotated[str, Field(2)] = ""


class Merged(Message, name="datalattice.v1.Merged"):
    """The hash of the root after a merge, and whether the merge changed it."""

    root_hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    changed: Annotated[bool, Field(2)] = False


# EFFECT: a merge of the same value changes nothing.
@action(
    "lattice.merge",
    ActionKind.EFFECT,
    "w",
    "lattice/{path}",
    POST("/lattice/{path...}", body="value"),
)
class MergePath(ActionRequest[Merged], name="datalattice.v1.MergePathRequest"):
    """Merge a value into the value at a path, with the checks and signatures of a peer's value.

    On disk when it returns. Raises: BadFormat, BadSignature, MissingData: it is incomplete.
    """

    path: Annotated[str, Field(1)] = ""
    value: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None


class RootInfo(Message, name="datalattice.v1.RootInfo"):
    """The hash of the root, and the names of its sections. resume: in a stream."""

    hash: Annotated[bytes, Field(1, codec=HASH_FORMAT)] = b""
    sections: Annotated[tuple[str, ...], Field(2)] = ()
    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


# The scope `lattice`, as for all its data: with the root hash a caller can prove a guess of it.
@action("lattice.root", ActionKind.QUERY, "r", "lattice", GET("/root"), is_tool=True)
class GetRoot(ActionRequest[RootInfo], name="datalattice.v1.GetRootRequest"):
    """Return the hash of the root of the lattice, and the names of its sections."""


@action("lattice.watch", ActionKind.STREAM, "r", "lattice", GET("/events"))
class WatchRoot(ActionRequest[RootInfo], name="datalattice.v1.WatchRootRequest"):
    """Return the root, then each new one; a slow reader gets the newest and misses those between.

    resume: of the last root received, which is not sent again.
    """

    resume: Annotated[str, Field(RESUME_NUMBER)] = ""


class PastRoot(Message, name="datalattice.v1.FormerRoot"):
    """A former root: its hash, when it was made, and its name for `at` of `lattice.get`."""

    ref: Annotated[str, Field(1)] = ""
    time_ms: Annotated[int, Field(2, "int64")] = 0
    hash: Annotated[bytes, Field(3, codec=HASH_FORMAT)] = b""


class RootHistory(Message, name="datalattice.v1.RootHistory"):
    """Former roots, the newest first."""

    roots: Annotated[tuple[PastRoot, ...], Field(1)] = ()


@action("lattice.history", ActionKind.QUERY, "r", "lattice", GET("/history"), is_tool=True)
class ListRoots(ActionRequest[RootHistory], name="datalattice.v1.ListRootsRequest"):
    """Return the former roots that the store remembers, the newest first, `count` at most.

    `at` of `lattice.get` takes the `ref` of one, such as `HEAD~1`.
    """

    count: Annotated[int, Field(1, "uint32")] = PAGE


class PinInfo(Message, name="datalattice.v1.PinInfo"):
    """A pin: its label, and the hash of the value that it keeps with all below it."""

    label: Annotated[str, Field(1)] = ""
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""


class PinList(Message, name="datalattice.v1.PinList"):
    """Pins, in the order of their labels."""

    pins: Annotated[tuple[PinInfo, ...], Field(1)] = ()


# Pins are the caller's own: two callers may use one label, and neither sees the other's pins.
@action("pins.list", ActionKind.QUERY, "r", "pins/{caller}", GET("/pins"), is_tool=True)
class ListPins(ActionRequest[PinList], name="datalattice.v1.ListPinsRequest"):
    """List the pins of the caller: labels of kept values, with their hashes."""


# EFFECT: to pin the same hash under the same label again changes nothing.
@action("pins.put", ActionKind.EFFECT, "p", "pins/{caller}", PUT("/pins/{label}", 201))
class PutPin(ActionRequest[PinInfo], name="datalattice.v1.PutPinRequest"):
    """Keep a stored value and all below it until the pin is deleted.

    Raises: MissingData: the store lacks the value or a cell below it.
    """

    label: Annotated[str, Field(1)] = ""
    hash: Annotated[bytes, Field(2, codec=HASH_FORMAT)] = b""


@action("pins.delete", ActionKind.EFFECT, "p", "pins/{caller}", DELETE("/pins/{label}"))
class DeletePin(ActionRequest[Empty], name="datalattice.v1.DeletePinRequest"):
    """Delete a pin; the next collection may remove its value. Raises: NoSuchPath."""

    label: Annotated[str, Field(1)] = ""
