"""Access: how the commands on weaver stores find a store and show its contents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from datalattice.cli.units import duration_s, moment_text
from datalattice.errors import NoSuchPath, UsageError

if TYPE_CHECKING:
    from datalattice.cli.command import Call
    from datalattice.client import Node
    from datalattice.cursors import Stream
    from datalattice.weaver import (
        Machine,
        SignedIntention,
        StoreHandle,
        StoreInfo,
        StorePeer,
        Stores,
        Summary,
    )

T = TypeVar("T")

LISTED: Final = "`lattice store list` lists them"

RECORD_DIGITS_SHOWN: Final = 12
SIGNER_DIGITS_SHOWN: Final = 8

StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE", help="The store: its name, PARENT/NAME for a child, or digits of its id."
    ),
]
InBytes = Annotated[str, typer.Option("--in", metavar="text|hex", help="Format of values.")]
ForOption = Annotated[
    str | None, typer.Option("--for", help="End after this time: 90s, 2h.", show_default=False)
]


def reader(call: Call) -> Node:
    """Return the folder's node, for reading."""
    from datalattice.client import open as open_node

    # Read only: it takes no lock and makes no folder.
    return call.enter(open_node(call.folder.path, read_only=True))


def writer(call: Call, name: str) -> Node:
    """Return the folder's node, for a write that makes a missing store of this name."""
    # PARENT/NAME is a child of a store that exists, so it cannot be the first write to a folder.
    return call.node_handle(makes_folder="/" not in name)


def has_stores(node: Node) -> bool:
    """Return whether a store was ever made in the folder; makes none of its files."""
    return node._weaver().weaver.exists


def found(stores: Stores, name: str) -> StoreInfo:
    """Return the store that a name means. Raises: NoSuchPath: the store does not exist."""
    info = stores.find(name)
    if info is None:
        raise stores.missing(name, LISTED)
    return info


def handle_of(node: Node, name: str) -> StoreHandle:
    """Return the handle of a store of any kind. Raises: NoSuchPath: the store does not exist."""
    from datalattice.weaver import store_id_text

    # By id, because several stores may have the name.
    opened: StoreHandle = node.store(store_id_text(found(node.weaver, name).id))
    return opened


def handle(node: Node, name: str, kind: str | None, shown: str) -> Any:
    """Return the handle of a store, with values as bytes.

    kind:  a missing store is made with this kind; None: the store must exist.
    shown: the kind that the store must have.
    Raises: NoSuchPath: the store does not exist. UsageError: it has another kind.
    """
    stores = node.weaver if has_stores(node) else None  # `node.weaver` would make files
    info = None if stores is None else stores.find(name)
    if info is None and stores is not None and (kind is None or stores.children_named(name)):
        raise stores.missing(name, LISTED)  # no root is made if a child has the name
    if info is None and kind is None:
        raise NoSuchPath(f"there is no store {name!r}; {LISTED}")
    if info is None and "/" in name:  # PARENT/NAME: a first write makes no child
        raise NoSuchPath(f"there is no store {name!r}; `lattice store create` makes a child")
    if info is not None and info.kind != shown:
        raise UsageError(f"the store {name!r} is of kind {info.kind}, not {shown}")
    from datalattice.weaver import store_id_text

    # As bytes: programs may have written values of any type, which a command does not know.
    return node.store(name if info is None else store_id_text(info.id), kind, of=bytes)


def parse_bytes(text: str, form: str) -> bytes:
    """Return a value of the command line as bytes.

    Raises: UsageError: the form is unknown, or `text` is not hex.
    """
    if form == "text":
        return text.encode(errors="surrogateescape")  # an argument need not be UTF-8
    if form != "hex":
        raise UsageError(f"--in is text or hex here, got {form!r}")
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise UsageError(f"a hex value is pairs of hex digits, got {text!r:.80}") from None


def bytes_text(value: bytes | None) -> str:
    """Return a value for people: text if it is UTF-8, else hex; `(deleted)` for None."""
    if value is None:
        return "(deleted)"
    try:
        return value.decode()
    except UnicodeDecodeError:
        # A text may begin with 0x as well. Programs use --json, which names the two differently.
        return f"0x{value.hex()}"


def bytes_json(value: bytes | None) -> dict[str, str | None]:
    """Return a value for JSON: `value` as text, or `hex` if it is not UTF-8."""
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def limited(stream: Stream[T], span: str | None, count: int | None) -> Iterator[T]:
    """Yield the items of a stream for `span` at most, and `count` at most; then close it."""
    timer = None
    if span is not None:
        # Closed by a timer, because the loop below waits in the stream for the next item.
        timer = threading.Timer(duration_s(span), stream.close)
        timer.start()
    try:
        with stream:
            for at, item in enumerate(stream, 1):
                yield item
                if at == count:
                    return
    finally:
        if timer is not None:
            timer.cancel()  # else its thread would delay the end of the process


def peer_document(peer: StorePeer) -> dict[str, Any]:
    """Return a peer of a store for JSON."""
    return {
        "key": peer.public_key.hex(),
        "name": peer.name,
        "status": peer.status.name.lower(),
        "added": None if peer.added_at_ms is None else moment_text(peer.added_at_ms),
    }


def operation_summary(signed: SignedIntention, machine: Machine | None) -> Summary:
    """Return a summary of an operation. machine: that of its store; None: the data is bytes."""
    from datalattice.weaver import summarize

    return summarize(signed.intention.payload, signed.hash, machine)


def operation_document(signed: SignedIntention, machine: Machine | None) -> dict[str, Any]:
    """Return an operation for JSON: its signer, time, predecessors and summary."""
    intention = signed.intention
    return {
        "hash": signed.hash.hex(),
        "author": intention.author.hex(),
        "time": moment_text(intention.stamp.wall),
        "stamp": str(intention.stamp),
        "prev": intention.store_prev.hex(),
        "deps": [dep.hex() for dep in intention.deps],
        "operation": operation_summary(signed, machine).text,
    }
