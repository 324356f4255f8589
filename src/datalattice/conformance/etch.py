"""Etch vectors: store files of the reference, rebuilt, read and compared in every part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from datalattice.cells import Value, encode, value_hash
from datalattice.conformance.checks import (
    as_fields,
    as_hex,
    as_int,
    as_list,
    expect,
    need_hex,
    need_int,
    need_list,
    need_text,
    only_fields,
)
from datalattice.conformance.registry import (
    Case,
    Fields,
    Mismatch,
    VectorFormat,
    register_format,
    register_kind,
)
from datalattice.crypto import sha3_256
from datalattice.store.etch import EtchFile, EtchRecord, EtchStore, block_bytes

SCHEMA: Final = "datalattice-etch-file/1"

FILE_BYTES_MAX: Final = 1 << 30
"""Longest file that is rebuilt: a changed size must not fill the disk."""

CASE_FIELDS: Final = (
    "name",
    "description",
    "file_size",
    "header",
    "version",
    "data_length",
    "root_hash",
    "highest_used",
    "index_blocks",
    "records",
)


def _cases(document: Fields) -> Iterable[Case]:
    return [
        Case(need_text(as_fields(node, "case"), "name"), "etch-file", as_fields(node, "case"))
        for node in need_list(document, "cases")
    ]


def run_etch_file(fields: Fields) -> None:
    """Rebuild a store file and compare all that is in it with the vector."""
    only_fields(fields, CASE_FIELDS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vector.etch")
        _rebuild(fields, path)
        with EtchStore.open(path, read_only=True) as store:
            _compare_header(fields, store)
            _compare_blocks(fields, store.file)
            records = _compare_records(fields, store.file)
            _compare_values(fields, store, records)


def _rebuild(fields: Fields, path: Path) -> None:
    size = need_int(fields, "file_size")
    if not 0 <= size <= FILE_BYTES_MAX:
        raise Mismatch(f"file_size: 0 to {FILE_BYTES_MAX} is accepted, got {size}")
    # The undefined bytes behind the data length are zeros here.
    data = bytearray(size)
    _place(data, 0, need_hex(fields, "header"))
    for node in need_list(fields, "index_blocks"):
        block = as_fields(node, "index block")
        only_fields(block, ("offset", "level", "slots"))
        for slot in need_list(block, "slots"):
            number, value = as_list(slot, "slot", 2)
            # A slot has 8 bytes.
            place = need_int(block, "offset") + 8 * as_int(number, "slot number")
            _place(data, place, as_hex(value, "slot"))
    for node in need_list(fields, "records"):
        record = as_fields(node, "record")
        only_fields(record, ("offset", "key", "flags", "memory_size", "length", "encoding"))
        _place(data, need_int(record, "offset"), _record_bytes(record))
    path.write_bytes(data)


def _record_bytes(record: Fields) -> bytes:
    # key (32 bytes), flags u8, memory size u64, length u16, encoding
    return (
        need_hex(record, "key")
        + bytes((need_int(record, "flags"),))
        + need_int(record, "memory_size").to_bytes(8, "big")
        + need_int(record, "length").to_bytes(2, "big")
        + need_hex(record, "encoding")
    )


def _place(data: bytearray, offset: int, part: bytes) -> None:
    if offset < 0 or offset + len(part) > len(data):  # else Python would lengthen the data
        raise Mismatch(f"{len(part)} bytes at {offset} are outside the file")
    data[offset : offset + len(part)] = part


def _compare_header(fields: Fields, store: EtchStore) -> None:
    expect("version", need_int(fields, "version"), 1)
    expect("data length", need_int(fields, "data_length"), store.file.length)
    expect("file size", need_int(fields, "file_size"), store.file.size)
    expect("root hash", need_hex(fields, "root_hash"), store.file.root_hash)


def _compare_blocks(fields: Fields, file: EtchFile) -> None:
    found: dict[tuple[int, int], list[list[object]]] = {block: [] for block in file.blocks()}
    for slot in file.slots():
        # A slot is a u64: the kind in the upper two bits, the offset below.
        value = (slot.kind << 62 | slot.target).to_bytes(8, "big").hex()
        found[slot.block, slot.level].append([slot.number, value])
    wanted = {
        (need_int(block, "offset"), need_int(block, "level")): need_list(block, "slots")
        for block in need_list(fields, "index_blocks")
    }
    expect("index blocks", sorted(wanted), sorted(found))
    for block, slots in wanted.items():
        expect(f"slots of the block at {block[0]}", slots, found[block])


def _compare_records(fields: Fields, file: EtchFile) -> list[EtchRecord]:
    found = sorted(file.records(), key=lambda record: record.offset)
    wanted = need_list(fields, "records")
    expect("records", len(wanted), len(found))
    for record, node in zip(found, wanted, strict=True):
        expect("offset of a record", need_int(node, "offset"), record.offset)
        expect("key", need_hex(node, "key"), record.key)
        expect("flags", need_int(node, "flags"), record.flags)
        expect("memory size", need_int(node, "memory_size"), record.memory_size)
        expect("length", need_int(node, "length"), len(record.encoding))
        expect("encoding", need_hex(node, "encoding"), record.encoding)
        # Found through the index, not only by walking over the records.
        expect("place of the key", record.offset, file.find(record.key))
    ends = [file.length if not found else found[-1].end]
    # The highest used byte may be in a record or in an index block.
    ends += [offset + block_bytes(level) for offset, level in file.blocks()]
    expect("highest used byte", need_int(fields, "highest_used"), max(ends))
    for record in found:
        # A key that differs in its last bit: the search ends beside a record, without finding it.
        absent = record.key[:-1] + bytes((record.key[-1] ^ 1,))
        expect("a key that is not there", None, file.find(absent))
    return found


def _compare_values(fields: Fields, store: EtchStore, records: list[EtchRecord]) -> None:
    """Read every cell whose key is its hash as a value, and the root."""
    for record in records:
        # Some vectors have records with made-up keys, to lay out the index.
        if sha3_256(record.encoding) == record.key:
            value: Value = store.load(record.key)
            expect("value read and written again", record.encoding, encode(value))
    root = need_hex(fields, "root_hash")
    wanted = None if root == bytes(32) else root  # zeros stand for no root
    expect("root", wanted, store.root_hash())
    if wanted is not None:
        expect("hash of the root as it is read", wanted, value_hash(store.root()))


register_format(
    VectorFormat("etch files", lambda document: document.get("schema") == SCHEMA, _cases)
)
register_kind("etch-file", run_etch_file)
