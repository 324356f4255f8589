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

HOLD_SECONDS: Final = 24 * 60 * 60  # copying a large root takes hours
"""Longest lease on a root that is copied; it is released when the copy is complete."""

HASH_DIGITS_SHOWN: Final = 12
KEY_DIGITS_SHOWN: Final = 16


def moments(store: CellStore) -> list[Moment]:
    """Return the history, with the present root last."""
    entries = store.history.entries()
    root = store.root_hash()
    if root is not None and (not entries or entries[-1].root_hash != root):
        # The entry of the last commit could not be written.
        entries.append(Moment(store.clock.now_ms(), root))
    return entries


def names_of(store: CellStore) -> dict[bytes, list[str]]:
    """Return the names of roots by their hashes: HEAD and pins."""
    names: dict[bytes, list[str]] = {}
    root = store.root_hash()
    if root is not None:
        names[root] = ["HEAD"]
    for pin in store.pins.all():
        names.setdefault(pin.root_hash, []).append(pin.name)
    return names


def about_root(store: CellStore, hash: bytes) -> dict[str, object]:
    """Return a root's hash, its names, and the last time when it became the root."""
    times = [time_text(one.time_ms) for one in store.history.entries() if one.root_hash == hash]
    return {
        "root": hash.hex(),
        "names": ", ".join(names_of(store).get(hash, [])),
        "since": times[-1] if times else None,
    }


def short(hash: bytes) -> str:
    """Return the first digits of a hash."""
    return hash.hex()[:HASH_DIGITS_SHOWN]


def path_text(path: tuple[Value, ...]) -> str:
    """Return a path in the form of the command line; public keys are shortened."""
    return " ".join(key_text(key) for key in path)


def key_text(key: Value) -> str:
    """Return a key of a path in the form of the command line; 32 bytes by their first digits."""
    if isinstance(key, bytes) and len(key) == 32:
        return f"0x{key.hex()[:KEY_DIGITS_SHOWN]}"
    text = brief(key) if references(encode(key)) else to_text(key)
    # A shell would split blanks and remove quotes.
    plain = isinstance(key, str) and key.isprintable() and key and not set(key) & set(" \"'\\")
    return str(key) if plain else text


def leaving(store: CellStore, root: bytes, *, with_local: bool) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the hash of a root without `:local`, and those of its cells that the store lacks.

    with_local: keep the section `:local`, which is the node's own.
    """
    from datalattice.lattice import replicable

    value = store.load(root)
    # `:local` is the node's own, and peers never get it.
    other = value if with_local else replicable(value)
    if other is value:
        return root, {}
    top = value_hash(other)
    made = {hash: encoding for hash, encoding, _ in novelty(other, store)}
    return top, {**made, top: encode(other)}
