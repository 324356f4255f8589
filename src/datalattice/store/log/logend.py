"""Log end: a file beside the log that says up to which pack the log was acknowledged.

A pack proves that the packs before it were durable, but nothing in the log proves the last ones. A
damaged byte there, or a file that ends too early, is either a write that a crash tore (never
acknowledged, so it is cut) or a loss of acknowledged data. The file `end` decides which. It has
three slots, each in a sector of its own:

    slot          magic `DLLE`, version (2 bytes), flags 2 (1: there is a root, 2: the trailer is
                  known), number of the last pack 8, segment 4, offset after it 4, its trailer 4,
                  root hash 32, CRC-32 of all that 4, begun with that of the store id

The third slot is written after every sync of the log, without a sync, which takes a few
microseconds: it survives the death of the process. The first two slots are written in turn and
synced when the store is closed, when `sync` is called, when a segment is begun and after SYNC_PACKS
packs: they survive a power failure. A slot is written only after the packs it names are durable. So
every slot is true, and the one with the greatest number counts.

Source: docs/store.md "What is known of the end", "After a loss".
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Final

from datalattice.errors import Corruption, StoreVersion
from datalattice.store.files import StoreFolder
from datalattice.store.log.folder import END_FILE, LOSS_FILE
from datalattice.store.log.hashindex import LogPosition
from datalattice.store.log.packing import NO_ROOT, seed_of
from datalattice.store.log.segments import segment_numbers, segment_path, segment_size
from datalattice.store.records import Damage

END_VERSION = 1  # not Final, which is compiled in: tests write a newer one

SYNC_PACKS: Final = 256
"""The end is made durable after this many packs, which costs one more sync."""

SLOT_STRIDE: Final = 512
"""Slots are in different sectors, so that a torn write damages one of them at most."""

_SLOT: Final = struct.Struct(">4sHHQIII32s")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"DLLE"
_SYNCED_SLOTS: Final = 2
_SLOTS: Final = 3
_SLOT_BYTES: Final = _SLOT.size + _CRC.size
_HAS_ROOT: Final = 1
_HAS_TRAILER: Final = 2


class LogEnd:
    """The end of the last acknowledged pack, and the root there.

    A class compiles better than a NamedTuple.
    """

    __slots__ = ("position", "root")

    def __init__(self, position: LogPosition, root: bytes | None) -> None:
        self.position: Final = position
        self.root: Final = root


@dataclass(frozen=True, slots=True)
class Loss:
    """Acknowledged commits that are no longer in the log."""

    first: int
    """Number of the first pack that is lost, as in `Commit.sequence`."""
    last: int
    file: str
    offset: int
    """Where the first lost pack began, in the file or the missing segment."""
    size_bytes: int
    is_exact: bool
    """False: `size_bytes` is a lower bound, because complete segments are gone."""
    root: bytes | None
    """The root that the last lost pack committed; None: not known."""
    reason: str
    """Why the pack cannot be read: what is at `offset` instead."""
    is_given_up: bool = False
    """Whether the log continues without the lost packs; False: they may still be healed."""
    is_certain: bool = True
    """False: the record of the log's end is gone, so a loss cannot be excluded."""

    def __str__(self) -> str:
        if not self.is_certain:
            return (
                f"{self.file}: {self.reason}, so commits after the last one that is here may have "
                "been acknowledged and lost: that cannot be excluded"
            )
        count = self.last - self.first + 1
        packs = f"pack {self.last} was" if count == 1 else f"packs {self.first} to {self.last} were"
        size = f"{'' if self.is_exact else 'at least '}{self.size_bytes:,} bytes"
        root = "" if self.root is None else f"; the last root was 0x{self.root.hex()}"
        return (
            f"{self.file} at byte {self.offset}: {self.reason}; {packs} acknowledged and cannot be "
            f"read any more, {size}{root}"
        )


class EndRecord:
    """The file `end` of a store that is open for writing."""

    def __init__(self, folder: StoreFolder, store_id: bytes) -> None:
        """Read the file, or make it.

        Raises: StoreVersion: a newer version wrote it. OSError.
        """
        self._seed = seed_of(store_id)
        path = f"{folder}/{END_FILE}"
        self.damage: list[Damage] = []
        """Set if both synced slots were written and neither can be read."""
        exists = folder.exists(END_FILE)
        self._file = folder.open(END_FILE, create=not exists, write=True)
        try:
            if not exists:
                self._file.write(0, bytes(_SLOTS * SLOT_STRIDE))
                self._file.sync()
                folder.disk.sync_folder(folder.path)
            slots = _slots_of(self._file.read(0, _SLOTS * SLOT_STRIDE))
            ends = [_read_slot(data, self._seed, path) for data in slots]
        except BaseException:
            self._file.close()
            raise
        self.found = _greatest(ends)
        """The last acknowledged pack; None: there is none, or it is not known."""
        synced = [_sequence_of(end) for end in ends[:_SYNCED_SLOTS]]
        if max(synced) < 0 and all(any(data) for data in slots[:_SYNCED_SLOTS]):
            self.damage.append(Damage(path, 0, "the record of the log's end is damaged"))
        # The older slot is overwritten first: a torn write leaves the newer one.
        self._turn = synced.index(min(synced))
        self._synced = max(synced)
        self._noted = -1

    def note(self, end: LogEnd) -> None:
        """Record the durable position so that it survives the process, but not the machine.

        Raises: OSError: it cannot be written.
        """
        position = end.position
        # "And after 256 packs" (docs/store.md): a power failure hides at most 255 commits.
        if position.sequence - self._synced >= SYNC_PACKS:
            self.sync(end)
        elif position.sequence != self._noted:
            self._write(_SYNCED_SLOTS, end)

    def sync(self, end: LogEnd) -> None:
        """Record the durable position durably.

        Raises: OSError: it cannot be written.
        """
        # An older end never overwrites a newer one.
        if end.position.sequence > self._synced:
            self._write(self._turn, end)
            self._write(_SYNCED_SLOTS, end)
            self._file.sync()
            self._synced = end.position.sequence
            # In turn: a write torn by a power failure leaves the other slot whole.
            self._turn = 1 - self._turn

    def _write(self, slot: int, end: LogEnd) -> None:
        # In a sector of its own, so that a torn write damages this slot alone.
        self._file.write(slot * SLOT_STRIDE, _slot_bytes(end, self._seed))
        self._noted = end.position.sequence

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_end(folder: StoreFolder, store_id: bytes) -> LogEnd | None:
    """Return the acknowledged end of the log, as a reader sees it; None: there is none, or unknown.

    Raises: StoreVersion: a newer version wrote it.
    """
    data = folder.read(END_FILE, _SLOTS * SLOT_STRIDE)
    if data is None:
        return None
    path = f"{folder}/{END_FILE}"
    return _greatest([_read_slot(slot, seed_of(store_id), path) for slot in _slots_of(data)])


def lost_packs(
    folder: StoreFolder, good: LogPosition, last: int, acknowledged: LogEnd | None, reason: str
) -> Loss:
    """Return the loss of the packs after `good`, up to the number `last`."""
    number = max(good.segment, 1)
    path = segment_path(folder, number)
    here = segment_size(folder, number) - good.offset if folder.disk.exists(path) else 0
    size, is_exact, root = max(0, here), False, None
    if acknowledged is not None:
        end, root = acknowledged.position, acknowledged.root
        if end.segment != good.segment:
            size += end.offset  # at least: the lengths of segments in between are not known
        elif end.sequence == last:
            size, is_exact = end.offset - good.offset, True
    return Loss(good.sequence + 1, last, path, good.offset, size, is_exact, root, reason)


def unknown_loss(folder: StoreFolder) -> Loss | None:
    """Return the loss that cannot be excluded, where `end` is missing or cut; else None."""
    # A store without segments has acknowledged nothing.
    if not segment_numbers(folder):
        return None
    reason = "the record of the log's end is gone"
    if folder.exists(END_FILE):
        # The file is made with three sectors: without the third one it was cut.
        if folder.size(END_FILE) > (_SLOTS - 1) * SLOT_STRIDE:
            return None
        reason = "the record of the log's end is cut"
    path = f"{folder}/{END_FILE}"
    return Loss(0, 0, path, 0, 0, False, None, reason, is_given_up=True, is_certain=False)


def loss_of_reader(folder: StoreFolder, here: LogPosition, end: LogEnd | None) -> Loss | None:
    """Return the acknowledged packs that a reader which reads up to `here` lacks, as a loss.

    Raises: Corruption: the record of a loss is damaged.
    """
    noted = read_loss(folder) or unknown_loss(folder)
    if noted is not None or end is None or here.sequence >= end.position.sequence:
        return noted
    return lost_packs(folder, here, end.position.sequence, end, "what can be read ends here")


def write_loss(folder: StoreFolder, loss: Loss) -> None:
    """Record a loss durably, until it is accepted.

    Raises: StoreFull, StoreFailed: it cannot be written.
    """
    fields = asdict(loss) | {"root": None if loss.root is None else loss.root.hex()}
    folder.replace(LOSS_FILE, json.dumps(fields).encode() + b"\n")


def read_loss(folder: StoreFolder) -> Loss | None:
    """Return the loss that is not accepted yet, None when there is none.

    Raises: Corruption: the file is damaged.
    """
    text = folder.read_text(LOSS_FILE)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        root = fields.pop("root")
        return Loss(root=None if root is None else bytes.fromhex(root), **fields)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Corruption(
            f"{folder}/{LOSS_FILE}: the record of lost commits is damaged; remove it once the loss "
            "is accepted"
        ) from None


def _slot_bytes(end: LogEnd, seed: int) -> bytes:
    sequence, segment, offset, trailer = end.position
    flags = 0 if end.root is None else _HAS_ROOT
    flags |= 0 if trailer is None else _HAS_TRAILER
    body = _SLOT.pack(
        _MAGIC, END_VERSION, flags, sequence, segment, offset, trailer or 0, end.root or NO_ROOT
    )
    # [magic 4][version 2][flags 2][number 8][segment 4][offset 4][trailer 4][root 32][CRC-32 4].
    return body + _CRC.pack(zlib.crc32(body, seed))


def _slots_of(data: bytes) -> list[bytes]:
    return [data[at : at + _SLOT_BYTES] for at in range(0, _SLOTS * SLOT_STRIDE, SLOT_STRIDE)]


def _read_slot(data: bytes, seed: int, path: str) -> LogEnd | None:
    """Read a slot; None: never written, or its checksum differs."""
    body = data[: _SLOT.size]
    if len(data) < _SLOT_BYTES or _CRC.pack(zlib.crc32(body, seed)) != data[_SLOT.size :]:
        return None
    magic, version, flags, sequence, segment, offset, trailer, root = _SLOT.unpack(body)
    # Never written: zeros.
    if magic != _MAGIC:
        return None
    if version > END_VERSION:
        raise StoreVersion(
            f"{path}: format version {version}; this package reads up to {END_VERSION}"
        )
    position = LogPosition(sequence, segment, offset, trailer if flags & _HAS_TRAILER else None)
    return LogEnd(position, root if flags & _HAS_ROOT else None)


def _sequence_of(end: LogEnd | None) -> int:
    return -1 if end is None else end.position.sequence


def _greatest(ends: list[LogEnd | None]) -> LogEnd | None:
    return max(ends, key=_sequence_of)
