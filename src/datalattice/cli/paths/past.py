"""Past: what commands on former roots share: their history, names and printed paths."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from datalattice.cells import Value, brief, encode, novelty, references, to_text, value_hash
from datalattice.store import CellStore, time_text
from datalattice.store.kept import Moment

WithLocalOption = Annotated[
    bool,
    typer.Option("--with-local", help="Include the node's own data, the section :local."),
]

# Copying a large root takes hours; a crash must not hold it for ever.
HOLD_SECONDS: Final = 24 * 60 * 60
"""A root that is copied is leased for so long; the lease is given back when it is done."""

HASH_DIGITS_SHOWN: Final = 12
KEY_DIGITS_SHOWN: Final = 16


def moments(store: CellStore) -> list[Moment]:
    """Return the history, the present root last, also where it could not be written down."""
    entries = store.history.entries()
    root = store.root_hash()
    if root is not None and (not entries or entries[-1].root_hash != root):
        # A commit whose entry could not be written.
        entries.append(Moment(store.clock.now_ms(), root))
    return entries


def names_of(store: CellStore) -> dict[bytes, list[str]]:
    """Return the names that roots have, by hash: HEAD and pins."""
    names: dict[bytes, list[str]] = {}
    root = store.root_hash()
    if root is not None:
        names[root] = ["HEAD"]
    for pin in store.pins.all():
        names.setdefault(pin.root_hash, []).append(pin.name)
    return names


def about_root(store: CellStore, hash: bytes) -> dict[str, object]:
    """Describe a root: its hash, its names, and when it was the root."""
    times = [time_text(one.time_ms) for one in store.history.entries() if one.root_hash == hash]
    return {
        "root": hash.hex(),
        "names": ", ".join(names_of(store).get(hash, [])),
        "since": times[-1] if times else None,
    }


def short(hash: bytes) -> str:
    """Return the beginning of a hash."""
    return hash.hex()[:HASH_DIGITS_SHOWN]


def path_text(path: tuple[Value, ...]) -> str:
    """Return a path as it is written on the command line; long keys are cut."""
    return " ".join(key_text(key) for key in path)


def key_text(key: Value) -> str:
    """Return a key of a path as it prints, bytes of a public key by their beginning."""
    # Bytes of this length are nearly always a public key.
    if isinstance(key, bytes) and len(key) == 32:
        return f"0x{key.hex()[:KEY_DIGITS_SHOWN]}"
    text = brief(key) if references(encode(key)) else to_text(key)
    # Blanks and quotes would be other arguments.
    plain = isinstance(key, str) and key.isprintable() and key and not set(key) & set(" \"'\\")
    return str(key) if plain else text


def leaving(store: CellStore, root: bytes, *, with_local: bool) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the hash of what leaves of a root, and the cells of it that the store does not have.

    `:local` is the node's own, so it stays unless it is asked for.
    """
    from datalattice.lattice import replicable

    value = store.load(root)
    other = value if with_local else replicable(value)
    if other is value:  # nothing is left out: the root itself
        return root, {}
    top = value_hash(other)
    made = {hash: encoding for hash, encoding, _ in novelty(other, store)}
    return top, {**made, top: encode(other)}
