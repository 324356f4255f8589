"""Fork proof: two signed values of one slot in one message, checkable without further data.

The top cell is `[:fork-proof 1 path owner [one other]]`. The other cells are those that only one of
the two values has; cells of both stay references, which a check never reads. So a check needs
neither a store nor a network.

Source: docs/design/forks.md "Portable proof".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from datalattice.cells import (
    Keyword,
    Signed,
    Value,
    Vector,
    decode_parts,
    encode,
    is_embedded,
    join_cells,
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
    ValuePath,
    root_lattice,
    verify_did,
)
from datalattice.limits import MESSAGE_BYTES_MAX
from datalattice.sync.lattice.delta import LoadAll, beyond

PROOF: Final = Keyword("fork-proof")
_VERSION: Final = 1

FORK: Final = "FORK"
CHAIN: Final = "CHAIN"
INVALID: Final = "INVALID"


class ForkVerdict(NamedTuple):
    """What a proof shows.

    kind: FORK: the owner signed two values of which neither contains the other. CHAIN: one contains
          the other, which proves nothing. INVALID: it is malformed; `text` says why.
    """

    kind: str
    text: str
    path: ValuePath = ()
    owner: Value = None
    hashes: tuple[bytes, ...] = ()


def write_proof(path: ValuePath, owner: Value, one: Signed, other: Signed, fetch: LoadAll) -> bytes:
    """Return the message that proves that two cells of a slot fork.

    Raises: LimitExceeded: their difference does not fit into a message. MissingData: a cell that
            the check needs is gone. UsageError: it would not prove a fork.
    """
    top = Vector.of((PROOF, _VERSION, Vector.of(path), owner, Vector.of((one, other))))
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
            # A check reads equal cells at unequal positions, too: they are added as it asks.
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
    """Return the cells between the top and the two signed ones, as long paths and owners have."""
    inner = {value_hash(cell) for cell in cells}
    # With hashes in place of the two cells only the structure around them is left.
    shell = Vector.of((*top.to_list(0)[:-1], Vector.of([value_hash(cell) for cell in cells])))
    made = {hash: data for hash, data, _ in novelty(shell) if hash not in inner}
    made.pop(value_hash(shell), None)
    pair = top[4]
    if not is_embedded(pair):
        made[value_hash(pair)] = encode(pair)
    return made


def check_proof(data: bytes) -> ForkVerdict:
    """Return what a proof shows, from its bytes alone."""
    try:
        return _judge(data)
    except MissingData:
        return ForkVerdict(INVALID, "a cell is missing that the check has to look at")
    except DataLatticeError as error:
        return ForkVerdict(INVALID, str(error))


def _judge(data: bytes) -> ForkVerdict:
    top, _ = decode_parts(data, None)
    if not isinstance(top, Vector) or len(top) != 5 or not same(top[0], PROOF):
        return ForkVerdict(INVALID, "its top cell is not [:fork-proof 1 path owner cells]")
    # A later version may prove more than this code understands.
    if top[1] != _VERSION:
        return ForkVerdict(INVALID, f"it has another version than {_VERSION}")
    path, owner, pair = top[2], top[3], top[4]
    if not isinstance(path, Vector) or not len(path) or not same(path[-1], owner):
        return ForkVerdict(INVALID, "its path does not end with its owner")
    if not isinstance(pair, Vector) or len(pair) != 2:
        return ForkVerdict(INVALID, "its last element is not a Vector of two cells")
    one, other = pair[0], pair[1]
    if not isinstance(one, Signed) or not isinstance(other, Signed):
        return ForkVerdict(INVALID, "its cells are not signed")
    steps = tuple(path)
    context = MergeContext(verifier=verify_did, path=steps, owner=owner)
    # "Both signatures are valid, both signers may sign for the owner" (docs/design/forks.md,
    # Portable proof).
    for cell in (one, other):
        if not cell.verify():
            return ForkVerdict(INVALID, "a signature is not valid")
        if not context.authorises(owner, cell.public_key):
            return ForkVerdict(INVALID, f"{cell.public_key.hex()} may not sign for the owner")
    lattice = root_lattice().path(*steps)
    if not isinstance(lattice, SignedLattice):
        return ForkVerdict(INVALID, "its path is not that of a slot")
    hashes = (value_hash(one), value_hash(other))
    # A fork: each way of merging drops something of the other side.
    forked = all(_merged(lattice, a, b, context)[1] for a, b in ((one, other), (other, one)))
    text = "neither contains the other" if forked else "one of the two contains the other"
    return ForkVerdict(FORK if forked else CHAIN, text, steps, owner, hashes)


def is_descendant(path: tuple[Value, ...], cell: Value, former: Value) -> bool:
    """Return whether a slot's cell contains the former one.

    True also where the path is not a slot's, or one of the two is not signed.
    Raises: MissingData: a cell that differs is not in the store.
    """
    lattice = root_lattice().path(*path)
    if not isinstance(cell, Signed) or not isinstance(former, Signed):
        return True
    if not path or not isinstance(lattice, SignedLattice):
        return True
    context = MergeContext(verifier=verify_did, path=path, owner=path[-1])
    merged, is_fork = _merged(lattice, cell, former, context)
    return merged is cell and not is_fork


def _merged(
    lattice: SignedLattice, one: Signed, other: Signed, context: MergeContext
) -> tuple[Value, bool]:
    """Return (the merge of two cells of a slot, whether it left out something)."""
    found: list[MergeNotice] = []
    merged = lattice.merge(one, other, context.reporting(found.append))
    return merged, any(isinstance(notice, OwnerForked) for notice in found)
