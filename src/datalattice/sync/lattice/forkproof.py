"""Fork proof: two signed values of one slot in one message, for anybody to check.

The top cell is `[:fork-proof 1 path owner [one other]]`; the cells behind it are those that only
one of the two has. What both have stays a reference: a check never looks at it, so it takes neither
a store nor a network.

Source: docs/design/forks.md "Portable proof".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from datalattice.cells import (
    Keyword,
    Signed,
    Value,
    Vector,
    decode_parts,
    encode,
    is_embedded,
    novelty,
    same,
    value_hash,
)
from datalattice.errors import DataLatticeError, LimitExceeded, MissingData, UsageError
from datalattice.lattice import (
    MergeContext,
    MergeNotice,
    OwnerForked,
    SignedLattice,
    root_lattice,
    verify_did,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.sync.lattice.delta import Fetch, beyond
from datalattice.sync.lattice.forkrecords import Path
from datalattice.wire import join_cells

PROOF: Final = Keyword("fork-proof")
VERSION: Final = 1

FORK: Final = "FORK"
CHAIN: Final = "CHAIN"
INVALID: Final = "INVALID"


class ForkVerdict(NamedTuple):
    """What a proof shows.

    kind: FORK: the owner signed two values of which neither contains the other. CHAIN: one contains
          the other, which proves nothing. INVALID: it is no proof; `text` says why.
    """

    kind: str
    text: str
    path: Path = ()
    owner: Value = None
    hashes: tuple[bytes, ...] = ()


def write_proof(path: Path, owner: Value, one: Signed, other: Signed, fetch: Fetch) -> bytes:
    """Return the message that shows that two cells of a slot fork.

    Raises: LimitExceeded: they differ in more than a message holds. MissingData: a cell that the
            check needs is gone. UsageError: it would not prove a fork.
    """
    top = Vector.of((PROOF, VERSION, Vector.of(path), owner, Vector.of((one, other))))
    cells: dict[bytes, bytes] = {}
    for known, value in ((one, other), (other, one)):
        found = beyond([known], value, fetch, MESSAGE_BYTES_MAX)
        if found is None:
            raise LimitExceeded("the two values differ in more than a message holds, or are gone")
        cells.update(found)
    cells.update(_around(top, (one, other)))
    while True:
        data = join_cells(encode(top), cells.values())
        try:
            found_verdict = _judge(data)
        except MissingData as error:
            # Equal cells at unequal places are looked at, too.
            wanted = [hash for hash in error.hashes if hash not in cells]
            if not wanted:
                raise
            for hash, encoding in zip(wanted, fetch(wanted), strict=True):
                if encoding is None:
                    raise
                cells[hash] = encoding
            continue
        if found_verdict.kind != FORK:
            raise UsageError(f"this is no proof of a fork: {found_verdict.text}")
        return data


def _around(top: Vector, cells: tuple[Signed, Signed]) -> dict[bytes, bytes]:
    """Return the cells between the top and the two signed ones: of long paths and owners."""
    inner = {value_hash(cell) for cell in cells}
    shell = Vector.of((*top.to_list(0)[:-1], Vector.of([value_hash(cell) for cell in cells])))
    made = {hash: data for hash, data, _ in novelty(shell) if hash not in inner}
    made.pop(value_hash(shell), None)
    pair = top[4]
    if not is_embedded(pair):
        made[value_hash(pair)] = encode(pair)
    return made


def check_proof(data: bytes) -> ForkVerdict:
    """Return what a proof shows; nothing but its bytes is looked at."""
    try:
        return _judge(data)
    except MissingData:
        return ForkVerdict(INVALID, "a cell is missing that the check has to look at")
    except DataLatticeError as error:
        return ForkVerdict(INVALID, str(error))


def _judge(data: bytes) -> ForkVerdict:
    top, _ = decode_parts(data, None)
    if not isinstance(top, Vector) or len(top) != 5 or not same(top[0], PROOF):
        return ForkVerdict(INVALID, "it is no fork proof")
    if top[1] != VERSION:
        return ForkVerdict(INVALID, f"it is a fork proof of another version than {VERSION}")
    path, owner, pair = top[2], top[3], top[4]
    if not isinstance(path, Vector) or not len(path) or not same(path[-1], owner):
        return ForkVerdict(INVALID, "its path does not end with its owner")
    if not isinstance(pair, Vector) or len(pair) != 2:
        return ForkVerdict(INVALID, "it has not two cells")
    one, other = pair[0], pair[1]
    if not isinstance(one, Signed) or not isinstance(other, Signed):
        return ForkVerdict(INVALID, "its cells are not signed")
    steps = tuple(path)
    context = MergeContext(verifier=verify_did, path=steps, owner=owner)
    for cell in (one, other):
        if not cell.verify():
            return ForkVerdict(INVALID, "a signature is not valid")
        if not context.authorises(owner, cell.public_key):
            return ForkVerdict(INVALID, f"{cell.public_key.hex()} may not sign for the owner")
    lattice = root_lattice().path(*steps)
    if not isinstance(lattice, SignedLattice):
        return ForkVerdict(INVALID, "its path is not that of a slot")
    hashes = (value_hash(one), value_hash(other))
    forked = _forks(lattice, one, other, context) and _forks(lattice, other, one, context)
    text = "neither contains the other" if forked else "one of the two contains the other"
    return ForkVerdict(FORK if forked else CHAIN, text, steps, owner, hashes)


def is_descendant(path: tuple[Value, ...], cell: Value, former: Value) -> bool:
    """Return whether a slot's cell contains the one that stood there before it.

    True also where the path is not a slot's, or one of the two is not signed.
    Raises: MissingData: a cell that differs is not at hand.
    """
    lattice = root_lattice().path(*path)
    slots = isinstance(cell, Signed) and isinstance(former, Signed)
    if not (slots and path and isinstance(lattice, SignedLattice)):
        return True
    assert isinstance(cell, Signed)
    assert isinstance(former, Signed)
    context = MergeContext(verifier=verify_did, path=path, owner=path[-1])
    found: list[MergeNotice] = []
    note: Callable[[MergeNotice], None] = found.append
    merged = lattice.merge(cell, former, context.reporting(note))
    return merged is cell and not any(isinstance(report, OwnerForked) for report in found)


def _forks(lattice: SignedLattice, one: Signed, other: Signed, context: MergeContext) -> bool:
    found: list[MergeNotice] = []
    note: Callable[[MergeNotice], None] = found.append
    lattice.merge(one, other, context.reporting(note))
    return any(isinstance(report, OwnerForked) for report in found)
