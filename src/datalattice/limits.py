"""Limits: every bound that more than one package relies on, with its unit and its reason.

Relations between the bounds are asserted at import. Source: docs/design/foreign-data.md "Work",
"Charges".
"""

from __future__ import annotations

from typing import Final, NamedTuple

HASH_BYTES: Final = 32
"""Length of a value hash (SHA3-256)."""

CELL_BYTES_MAX: Final = 16_383
"""Longest encoding of one cell. It follows from the bounds below and is enforced when reading."""

EMBEDDED_BYTES_MAX: Final = 140
"""Longest encoding of a child that is embedded in its parent; longer ones are stored by hash."""

CHUNK_BYTES: Final = 4_096
"""Longest blob or string in a single cell, and the chunk size of longer ones."""

FAN_OUT: Final = 16
"""Children of a tree node."""

MAP_LEAF_MAX: Final = 15
"""Most entries of a map or set in a single leaf."""

INDEX_DEPTH_MAX: Final = 63
"""Greatest depth byte of an index node, in hex digits."""

INDEX_KEY_BYTES: Final = 32
"""Leading bytes of an index key that determine its position; the rest is ignored."""

NAME_BYTES_MAX: Final = 128
"""Longest name of a keyword or symbol, in UTF-8 bytes."""

INTEGER_BYTES_MAX: Final = 4_096
"""Longest two's complement encoding of an integer."""

INTEGER_TEXT_DIGITS_MAX: Final = 9_865
"""Decimal digits of the largest integer; bounds the parsing of numbers in text."""

STRING_BYTES_MAX: Final = 2**31 - 1
"""Longest string, in UTF-8 bytes."""

COUNT_MAX: Final = 2**63 - 1
"""Greatest count that a VLQ may carry."""

BLOB_BYTES_MAX: Final = COUNT_MAX
"""Longest blob, in bytes: its length is a count."""

VLQ_BYTES_MAX: Final = 9  # 63 bits in digits of 7
"""Longest VLQ."""

INLINE_DEPTH_MAX: Final = 72  # each level takes at least two bytes
"""Deepest nesting of embedded cells in a canonical cell: 140 bytes hold about 70 levels."""

MESSAGE_BYTES_MAX: Final = 50_000_000
"""Longest message: a cell and the branches sent with it, in bytes."""

TEXT_DEPTH_MAX: Final = 500
"""Deepest nesting of JSON text that is read and of values that are printed."""

TEXT_MAX: Final = 100_000_000
"""Longest text of a printed value, in characters; a number or mark counts as at least 8.

Shared cells make this bound necessary: a few cells can print as more text than fits in memory.
"""

MERGE_RECORDS_MAX: Final = 1 << 24
"""Most records of a log, or elements of a vector, that a merge visits one by one.

A hostile peer can send a log of 2**60 records in a dozen cells. Logs of one leader are compared
without visiting records, so the bound does not apply to them.
"""


class WorkLimits(NamedTuple):
    """Budget of a merge of foreign data and the cost of each step, in ticks.

    A tick is about a microsecond of compiled code; `bench/rows_hostile.py` checks that every cost
    is right within a factor of two.
    """

    start: int = 8_000
    """Budget before any byte is read."""
    grant: int = 2_000
    """Budget added after a costly part was dropped."""
    grants_max: int = 16
    """Parts that one message may have dropped before its merge is abandoned."""
    node: int = 2
    """Enter a tree node."""
    compared: int = 1
    """Compare two entries."""
    joined: int = 4
    """Merge an entry with the lattice of its type."""
    entry: int = 16
    """Merge an entry of a database."""
    directory: int = 16
    """Merge, clean, cut or timestamp a directory."""
    leaf: int = 2
    """Compare a leaf of 16 records."""
    moved: int = 20
    """Rewrite a leaf of 16 records."""
    signature: int = 60
    """Verify a signature."""
    counted: int = 3
    """Charge a cell to its owner: this plus one tick per `counted_bytes` bytes scanned."""
    counted_bytes: int = 128
    hashed: int = 2
    """Hash a new value: this plus one tick per `hashed_bytes` bytes."""
    hashed_bytes: int = 256


WORK_LIMITS: Final = WorkLimits()


class ChargeLimits(NamedTuple):
    """Budget of one sender over time, in ticks of `WorkLimits`."""

    per_s: int = 250_000
    """Long-run rate of a stranger, beyond what its bytes pay for."""
    burst_s: int = 2
    """Seconds of that rate that may be spent at once."""
    credit: int = 40_000
    """Ticks available to each merge of a sender in good standing: 10 MB of zeros are a few cells,
    yet take 40 ms to hash."""
    wanted_credit: int = 500_000
    """Ticks available to each merge of a wanted peer."""
    exceeded_start: int = 200
    """Ticks available to each merge for `exceeded_ms` after one that exceeded its budget."""
    exceeded_ms: int = 600_000
    """Duration of the reduced credit."""
    brought_max: int = 25_000_000
    """Most ticks saved from bytes received since the last merge: 100 MB of short entries."""
    message: int = 40
    """Fixed cost of a message: the smallest ones would be free otherwise."""
    commit: int = 100
    """Cost of a commit: storing and announcing the merged value."""
    unsound_max: int = 8
    """Most inconsistent cells accepted from one sender."""
    senders_max: int = 16_384
    """Most senders remembered; the one quiet for longest is forgotten first."""


CHARGE_LIMITS: Final = ChargeLimits()

# A node of references, a chunk, and the longest integer each fit into one cell.
assert FAN_OUT * (HASH_BYTES + 1) < CELL_BYTES_MAX
assert CHUNK_BYTES < CELL_BYTES_MAX
assert INTEGER_BYTES_MAX <= CHUNK_BYTES
# A key has two hex digits per byte.
assert INDEX_DEPTH_MAX + 1 == 2 * INDEX_KEY_BYTES
assert CELL_BYTES_MAX < MESSAGE_BYTES_MAX
