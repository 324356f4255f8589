"""Local names of owners, and which owner a text means."""

from __future__ import annotations

from pathlib import Path

import pytest

from datalattice.apps import Owner
from datalattice.apps.kv import Database
from datalattice.client import (
    Folder,
    forget_name,
    name_owner,
    owner_of,
    owners_in,
    read_names,
    resolve_owner,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Corruption, UsageError
from datalattice.lattice import MergeContext, did_of, root_lattice

KEYS = KeyPair(bytes(32))
OWN = KEYS.public_key
NEAR = OWN[:3] + bytes(29)
OTHER = bytes([7]) * 32


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "home")


def test_names_are_kept_replaced_and_forgotten(folder: Folder) -> None:
    assert read_names(folder) == {}
    name_owner(folder, "north", OTHER)
    name_owner(folder, "south", OWN)
    name_owner(folder, "north", NEAR)
    assert read_names(folder) == {"north": NEAR, "south": OWN}
    assert forget_name(folder, "north")
    assert not forget_name(folder, "north")
    assert read_names(folder) == {"south": OWN}


@pytest.mark.parametrize(
    "name", ["", "3f2a", "own", "all", "0xzz", "a b", "a/b", "did:x", 65 * "x"]
)
def test_what_could_mean_something_else_is_no_name(folder: Folder, name: str) -> None:
    with pytest.raises(UsageError, match="a local name has 1 to 64 printable characters"):
        name_owner(folder, name, OWN)


def test_a_damaged_file_of_names_is_named(folder: Folder) -> None:
    name_owner(folder, "north", OTHER)
    folder.names_path.write_text("[1]")
    with pytest.raises(Corruption, match=r"names\.json is not an object of names"):
        read_names(folder)
    with pytest.raises(UsageError, match="key has 32 bytes"):
        name_owner(folder, "north", b"short")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (OTHER, OTHER),
        (OTHER.hex(), OTHER),
        ("0x" + OTHER.hex().upper(), OTHER),
        ("0707", OTHER),
        ("north", OTHER),
        ("own", OWN),
        (OWN.hex()[:8], OWN),
        (did_of(OTHER), OTHER),
        ("did:web:example.org", "did:web:example.org"),
        (Owner(OTHER), OTHER),
    ],
)
def test_an_owner_is_named_in_several_ways(given: object, expected: object) -> None:
    assert resolve_owner(given, own=OWN, names={"north": OTHER}, owners=[NEAR]) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (OWN.hex()[:6], f"2 owners .*{OWN.hex()[:16]}"),
        ("070", "give at least 4 hex digits"),
        ("abcd", "no owner known here"),
        ("east", "an owner is a public key"),
        ("", "an owner is a public key"),
        (7, "an owner is a public key"),
        (b"short", "an owner is a public key"),
    ],
)
def test_what_names_no_owner_or_several_is_refused(given: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve_owner(given, own=OWN, names={"north": OTHER}, owners=[NEAR])


def test_an_owner_prints_as_its_name_or_as_unique_digits() -> None:
    names = {"north": OTHER}
    assert str(owner_of(OTHER, names=names, owners=[OWN])) == "north"
    assert str(owner_of(OWN, names=names, owners=[NEAR])) == OWN.hex()[:8]
    close = OWN[:5] + bytes([OWN[5] ^ 0x80]) + bytes(26)
    assert str(owner_of(OWN, names={}, owners=[OWN, close])) == OWN.hex()[:11]
    assert repr(owner_of("did:web:example.org", names={}, owners=[])) == (
        "<Owner did:web:example.org>"
    )
    one = Owner(OWN)
    assert (one, hash(one), one.hex, one.did) == (Owner(OWN), hash(one), OWN.hex(), did_of(OWN))


def test_the_owners_of_a_root_are_those_that_have_data_in_it() -> None:
    lattice = root_lattice()
    root = RootLattice(lattice, lattice.zero(), MergeContext(key_pair=KEYS))
    assert owners_in(None) == owners_in(root.get()) == []
    Database.at(root, OWN, "shop")["tea"] = 3
    assert owners_in(root.get()) == [OWN]
