"""Limits: every bound that more than one package relies on, with its unit and its reason.

Relations between the bounds are asserted when the module is imported, so a change that breaks one
cannot go unnoticed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HASH_BYTES: Final = 32
"""Length of a value hash (SHA3-256)."""

CELL_BYTES_MAX: Final = 16_383
"""Longest encoding of one cell. Follows from the rules below; enforced when reading."""

EMBEDDED_BYTES_MAX: Final = 140
"""A child whose encoding is at most this long stands inside its parent.

A longer one is referenced by hash.
"""

CHUNK_BYTES: Final = 4_096
"""Longest blob or string that is a single cell, and the chunk size of longer ones."""

FAN_OUT: Final = 16
"""Children of a tree node."""

MAP_LEAF_MAX: Final = 15
"""Most entries of a map or set that is a single leaf."""

INDEX_DEPTH_MAX: Final = 63
"""Greatest depth byte of an index node, in hex digits."""

INDEX_KEY_BYTES: Final = 32
"""Leading bytes of an index key that count."""

NAME_BYTES_MAX: Final = 128
"""Longest name of a keyword or symbol, in UTF-8 bytes."""

INTEGER_BYTES_MAX: Final = 4_096
"""Longest two's complement of an integer."""

INTEGER_TEXT_DIGITS_MAX: Final = 9_865
"""Decimal digits that the largest integer can need; bounds the parsing of numbers in text."""

STRING_BYTES_MAX: Final = 2**31 - 1
"""Longest string, in UTF-8 bytes."""

COUNT_MAX: Final = 2**63 - 1
"""Greatest count that a VLQ may carry."""

BLOB_BYTES_MAX: Final = COUNT_MAX
"""Longest blob, in bytes: its length is a count."""

VLQ_BYTES_MAX: Final = 9
"""Longest VLQ."""

INLINE_DEPTH_MAX: Final = 72
"""Deepest nesting of embedded cells that a canonical cell can reach.

140 bytes hold about 70 levels.
"""

MESSAGE_BYTES_MAX: Final = 50_000_000
"""Longest message: a cell and the branches sent with it."""

TEXT_DEPTH_MAX: Final = 500
"""Deepest nesting of JSON text that is read, and of values that are printed."""

TEXT_MAX: Final = 100_000_000
"""Longest text that a value is written as, in characters; a number or mark counts as at least 8.

A few cells that refer to one another many times over stand for more text than any machine holds.
"""

MERGE_RECORDS_MAX: Final = 1 << 24
"""Most records of a log, or elements of a vector, that a merge visits one by one.

A log of 2**60 records may be a dozen cells, sent by anybody. Logs of one leader are only compared.
"""


class WorkLimits(NamedTuple):
    """What a merge of foreign data may cost: its bounds, and the weight of each step, in ticks.

    A tick is about a microsecond of compiled code; `bench/rows_hostile.py` checks that no weight is
    wrong by more than a factor of two.

    Source: docs/design/foreign-data.md "Work".
    """

    start: int = 8_000
    """Ticks that may be spent before a byte is read."""
    grant: int = 2_000
    """Ticks to go on with after a part that cost too much was dropped."""
    grants_max: int = 16
    """Parts that one message may have dropped before it ends."""
    node: int = 2
    """A tree node is entered."""
    compared: int = 1
    """Two entries are compared."""
    joined: int = 4
    """An entry is given to the lattice of its kind."""
    entry: int = 16
    """An entry of a database is joined."""
    directory: int = 16
    """A directory is joined, cleaned, cut or timed."""
    leaf: int = 2
    """A leaf of 16 records is compared."""
    moved: int = 20
    """A leaf of 16 records is rewritten."""
    signature: int = 60
    """A signature is verified."""
    counted: int = 3
    """A cell is counted for its owner: this, and a tick for each 128 bytes that are scanned."""
    counted_bytes: int = 128
    hashed: int = 2
    """A value is hashed anew: this, and a tick for each 256 bytes of it."""
    hashed_bytes: int = 256


WORK_LIMITS: Final = WorkLimits()


class ChargeLimits(NamedTuple):
    """What one sender may cost over time, in ticks of `WorkLimits`.

    Source: docs/design/foreign-data.md "Charges".
    """

    per_s: int = 250_000
    """Ticks beyond the bytes it brought that a stranger may cause in a second, in the long run."""
    burst_s: int = 2
    """Seconds' worth of them at once."""
    credit: int = 40_000
    """Ticks with which a merge may begin while its sender is in good standing: 10 MB of zeros are a
    few cells, and take 40 ms to hash."""
    wanted_credit: int = 500_000
    """The same for a wanted peer."""
    exceeded_start: int = 200
    """Ticks with which it begins after one that exceeded its account."""
    exceeded_ms: int = 600_000
    """How long that lasts."""
    brought_max: int = 25_000_000
    """Ticks for bytes that are kept until something is merged: those of 100 MB of short entries."""
    message: int = 40
    """Ticks for a message, whatever it says; the smallest cost nothing else."""
    commit: int = 100
    """Ticks for a commit: what a merge made is stored and announced."""
    unsound_max: int = 8
    """Cells that do not fit together that a sender may bring."""
    senders_max: int = 16_384
    """Senders that are remembered; who was quiet for longest goes."""


CHARGE_LIMITS: Final = ChargeLimits()

assert FAN_OUT * (HASH_BYTES + 1) < CELL_BYTES_MAX
assert CHUNK_BYTES < CELL_BYTES_MAX
assert INTEGER_BYTES_MAX <= CHUNK_BYTES
assert INDEX_DEPTH_MAX + 1 == 2 * INDEX_KEY_BYTES
assert CELL_BYTES_MAX < MESSAGE_BYTES_MAX
