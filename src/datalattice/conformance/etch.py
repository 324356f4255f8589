"""Etch vectors: store files of the reference, rebuilt, read and compared in every part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from datalattice.cells import Value, encode, value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_hex,
    as_int,
    as_list,
    expect,
)
from datalattice.conformance.registry import Case, VectorFormat, register_format, register_kind
from datalattice.crypto import sha3_256
from datalattice.store.etch import EtchFile, EtchRecord, EtchStore, block_bytes

_SCHEMA: Final = "datalattice-etch-file/1"

_FILE_BYTES_MAX: Final = 1 << 30
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
        Case(as_fields(node, "case").text("name"), "etch-file", as_fields(node, "case"))
        for node in document.array("cases")
    ]


def run_etch_file(fields: Fields) -> None:
    """Rebuild a store file and compare every part of it with the vector."""
    fields.only(*CASE_FIELDS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vector.etch")
        _rebuild(fields, path)
        with EtchStore.open(path, read_only=True) as store:
            _compare_header(fields, store)
            _compare_blocks(fields, store.file)
            records = _compare_records(fields, store.file)
            _compare_values(fields, store, records)


def _rebuild(fields: Fields, path: Path) -> None:
    size = fields.integer("file_size")
    if not 0 <= size <= _FILE_BYTES_MAX:
        raise Mismatch(f"file_size: 0 to {_FILE_BYTES_MAX} is accepted, got {size}")
    # The undefined bytes behind the data length are zeros here.
    data = bytearray(size)
    _place(data, 0, fields.hex("header"))
    for node in fields.array("index_blocks"):
        block = as_fields(node, "index block")
        block.only("offset", "level", "slots")
        for slot in block.array("slots"):
            number, value = as_list(slot, "slot", 2)
            # A slot has 8 bytes.
            place = block.integer("offset") + 8 * as_int(number, "slot number")
            _place(data, place, as_hex(value, "slot"))
    for node in fields.array("records"):
        record = as_fields(node, "record")
        record.only("offset", "key", "flags", "memory_size", "length", "encoding")
        _place(data, record.integer("offset"), _record_bytes(record))
    path.write_bytes(data)


def _record_bytes(record: Fields) -> bytes:
    # key (32 bytes), flags u8, memory size u64, length u16, encoding
    return (
        record.hex("key")
        + bytes((record.integer("flags"),))
        + record.integer("memory_size").to_bytes(8, "big")
        + record.integer("length").to_bytes(2, "big")
        + record.hex("encoding")
    )


def _place(data: bytearray, offset: int, part: bytes) -> None:
    if offset < 0 or offset + len(part) > len(data):  # else Python would lengthen the data
        raise Mismatch(f"{len(part)} bytes at {offset} are outside the file")
    data[offset : offset + len(part)] = part


def _compare_header(fields: Fields, store: EtchStore) -> None:
    # Version 1 is the only one; the store refuses others when it opens.
    fields.expect("version", 1)
    expect("data length", fields.integer("data_length"), store.file.length)
    expect("file size", fields.integer("file_size"), store.file.size)
    expect("root hash", fields.hex("root_hash"), store.file.root_hash)


def _compare_blocks(fields: Fields, file: EtchFile) -> None:
    found: dict[tuple[int, int], list[list[object]]] = {block: [] for block in file.blocks()}
    for slot in file.slots():
        # A slot is a u64: the kind in the upper two bits, the offset below.
        value = (slot.kind << 62 | slot.target).to_bytes(8, "big").hex()
        found[slot.block, slot.level].append([slot.number, value])
    wanted = {
        (block.integer("offset"), block.integer("level")): block.array("slots")
        for block in fields.array("index_blocks")
    }
    expect("index blocks", sorted(wanted), sorted(found))
    for block, slots in wanted.items():
        expect(f"slots of the block at {block[0]}", slots, found[block])


def _compare_records(fields: Fields, file: EtchFile) -> list[EtchRecord]:
    # The vector lists records by offset, a walk of the file by index slot.
    found = sorted(file.records(), key=lambda record: record.offset)
    wanted = fields.array("records")
    expect("records", len(wanted), len(found))
    for record, node in zip(found, wanted, strict=True):
        expect("offset of a record", node.integer("offset"), record.offset)
        node.expect("key", record.key)
        node.expect("flags", record.flags)
        expect("memory size", node.integer("memory_size"), record.memory_size)
        node.expect("length", len(record.encoding))
        node.expect("encoding", record.encoding)
        # Found through the index, not only by walking over the records.
        expect("place of the key", record.offset, file.find(record.key))
    ends = [file.length if not found else found[-1].end]
    # The highest used byte may be in a record or in an index block.
    ends += [offset + block_bytes(level) for offset, level in file.blocks()]
    expect("highest used byte", fields.integer("highest_used"), max(ends))
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
    root = fields.hex("root_hash")
    wanted = None if root == bytes(32) else root  # zeros stand for no root
    expect("root", wanted, store.root_hash())
    if wanted is not None:
        expect("hash of the root as it is read", wanted, value_hash(store.root()))


register_format(
    VectorFormat("etch files", lambda document: document.get("schema") == _SCHEMA, _cases)
)
register_kind("etch-file", run_etch_file)
