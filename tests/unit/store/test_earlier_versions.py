"""A store that an earlier version wrote is read as it is, and the next writer goes on in it."""

from __future__ import annotations

from datalattice.cells import Vector, same
from datalattice.crypto import SeededEntropy
from datalattice.store import FOLDER_VERSION, CellStore
from datalattice.testing.disk import SimDisk

FOLDER = "store"
DESCRIPTION = "datalattice cell store\nversion 5\nid 5f0f454bf5f621cce61b75172680327d\n"
SEGMENT = bytes.fromhex(
    "444c5347000100005f0f454bf5f621cce61b75172680327d00000001000000000000000100000000273feaeb44"
    "4c504b0001000100000000000000010000000000000000000001a226920399000000010000002c000003150000"
    "0004000000030000000000000000b1fe0c1539e201abcf61aea4fbee5526b10799de2c5497e9c6a9974c592b9b"
    "10185ff0e80004011600cb0044b1fe0c1539e201abcf61aea4fbee5526b10799de2c5497e9c6a9974c592b9b10"
    "b66f484b47178b58d16a1ddea89f799cf43b272ea0cd581373670b586a3f85aa8030f955e648d67170b020c6ba"
    "467ef0ba3a76ffe5a28dba4576196eead8c7ab45e863b32aa650294d6c4525a07008dd25632706fe8d35abbbb0"
    "acd466efce54800111018003305a6974656d203079797979797979797979797979797979797979797979797979"
    "797979797979797979797979797979797979797979797979797979797979797979797979797979797979797979"
    "7979797979797979797979797979305a6974656d20317979797979797979797979797979797979797979797979"
    "797979797979797979797979797979797979797979797979797979797979797979797979797979797979797979"
    "79797979797979797979797979797979305a6974656d2032797979797979797979797979797979797979797979"
    "797979797979797979797979797979797979797979797979797979797979797979797979797979797979797979"
    "797979797979797979797979797979797979308148737461676564206265666f72657a7a7a7a7a7a7a7a7a7a7a"
    "7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a"
    "7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a"
    "7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a"
    "7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a80022080"
    "30f955e648d67170b020c6ba467ef0ba3a76ffe5a28dba4576196eead8c7ab20b66f484b47178b58d16a1ddea8"
    "9f799cf43b272ea0cd581373670b586a3f85aa5cf22b25444c504b000100010000000000000002000000000000"
    "0001000001a2269203990000000100000341000000c40000000000000000000000035cf22b2545e863b32aa650"
    "294d6c4525a07008dd25632706fe8d35abbbb0acd466efce54d5e9683ab66f484b47178b58d16a1ddea89f799c"
    "f43b272ea0cd581373670b586a3f85aa8030f955e648d67170b020c6ba467ef0ba3a76ffe5a28dba4576196eea"
    "d8c7ab45e863b32aa650294d6c4525a07008dd25632706fe8d35abbbb0acd466efce547ac5ac1e"
)
"""Three packs of version 1: a value that is staged, another root, the staged value as the root."""

END = bytes.fromhex(
    "444c4c450001000300000000000000020000000100000405459005b945e863b32aa650294d6c4525"
    "a07008dd25632706fe8d35abbbb0acd466efce54f094acb6"
).ljust(1_024, b"\0")
"""The record of the log's end, of which the file has two equal ones."""

STAGED = Vector.of(
    ["staged before".ljust(200, "z"), Vector.of([f"item {i}".ljust(90, "y") for i in range(3)])]
)


def written_by_version_5() -> SimDisk:
    disk = SimDisk(1)
    disk.create_folder(FOLDER)
    disk.create_folder(f"{FOLDER}/segments")
    files = {
        "STORE": DESCRIPTION.encode(),
        "segments/00000001.seg": SEGMENT,
        "end": END + END[:512],
    }
    for name, data in files.items():
        file = disk.open(f"{FOLDER}/{name}", create=True, write=True)
        file.write(0, data)
        file.sync()
        file.close()
    return disk


def open_store(disk: SimDisk, *, read_only: bool = False) -> CellStore:
    return CellStore.open(
        FOLDER, disk=disk, entropy=SeededEntropy(7), segment_bytes=65_536, read_only=read_only
    )


def test_a_writer_goes_on_in_a_store_of_version_5() -> None:
    disk = written_by_version_5()
    with open_store(disk) as store:
        assert store.loss is None
        assert same(store.root(), STAGED)
        assert store.check().is_clean
        store.put(Vector.of([STAGED, "more".ljust(200, "z")]))
        store.commit(Vector.of([STAGED, "more".ljust(200, "z")]))
    text = disk.open(f"{FOLDER}/STORE").read(0, 4_096).decode()
    assert text == DESCRIPTION.replace("version 5", f"version {FOLDER_VERSION}")
    disk.drop(f"{FOLDER}/index.state")  # so that both kinds of packs are read again
    with open_store(disk) as store:
        assert same(store.root(), Vector.of([STAGED, "more".ljust(200, "z")]))
        assert store.check().is_clean
    with open_store(disk, read_only=True) as reader:
        assert same(reader.root(), Vector.of([STAGED, "more".ljust(200, "z")]))
