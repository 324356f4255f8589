"""The standard root, and what of it leaves the node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import datalattice.apps  # noqa: F401 - registers its sections
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Map, Signed, Value, same, to_cell
from datalattice.crypto import KeyPair
from datalattice.errors import BadSignature, UsageError
from datalattice.lattice import (
    LOCAL_KEY,
    LOCAL_LATTICE,
    P2P,
    DataLattice,
    FunctionLattice,
    KeyedLattice,
    LWWLattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    MergeNotice,
    OwnerLattice,
    SignedLattice,
    local_slot,
    local_value,
    node_info,
    regions,
    register_section,
    replicable,
    root_lattice,
    set_local,
)
from datalattice.testing.lattice_kit import observed

KEY, OTHER = KeyPair(b"\x01" * 32), KeyPair(b"\x02" * 32)


@pytest.fixture
def sections() -> Iterator[None]:
    """Put the registered sections back afterwards."""
    before = dict(regions._SECTIONS)
    yield
    regions._SECTIONS.clear()
    regions._SECTIONS.update(before)
    root_lattice.cache_clear()


def test_the_root_has_its_standard_sections() -> None:
    root = root_lattice()
    assert isinstance(root.path("data"), DataLattice)
    assert root.path("local") is LOCAL_LATTICE
    assert root.path("p2p") is P2P
    assert isinstance(root.path("p2p", "nodes", KEY.public_key, Keyword("value")), LWWLattice)
    assert isinstance(root.path("local", KEY.public_key, Keyword("value"), "k"), LWWLattice)
    assert root.zero() is EMPTY_INDEX


@pytest.mark.usefixtures("sections")
def test_an_application_registers_its_section_once() -> None:
    key, lattice = Keyword("mine"), MapLattice(MaxLattice())
    register_section(key, lattice)
    register_section(key, lattice)
    assert root_lattice().path("mine") is lattice
    with pytest.raises(UsageError, match=":mine already has"):
        register_section(key, MapLattice(MaxLattice()))
    with pytest.raises(UsageError, match=":data already has"):
        register_section(Keyword("data"), DataLattice())
    with pytest.raises(TypeError, match=r"Keyword.* str$"):
        register_section("mine", lattice)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Lattice.* None(Type)?$"):
        register_section(Keyword("more"), None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("sections")
def test_a_section_below_an_owner_needs_an_order_unless_told_otherwise() -> None:
    joining = FunctionLattice(lambda a, _b: a)
    for lattice in (OwnerLattice(joining), KeyedLattice({"x": OwnerLattice(MapLattice(joining))})):
        with pytest.raises(UsageError, match=r":unordered has .*FunctionLattice.* below an owner"):
            register_section(Keyword("unordered"), lattice)
    register_section(Keyword("unordered"), OwnerLattice(joining), ordered=False)
    register_section(Keyword("not-owned"), MapLattice(joining))


@pytest.mark.parametrize("name", ["fs", "kv", "queue"])
def test_importing_the_applications_registers_their_sections(name: str) -> None:
    root = root_lattice()
    owner = KEY.public_key
    assert root.resolve_path([name, owner.hex(), "value", "a"]) == [
        Keyword(name),
        owner,
        Keyword("value"),
        "a",
    ]
    assert isinstance(root.path(name, owner), SignedLattice)


@pytest.mark.usefixtures("sections")
def test_a_section_that_is_not_known_is_left_alone_silently() -> None:
    lattice = root_lattice()
    mine = Keyword("mine")
    reports: list[MergeNotice] = []
    context = observed(MergeContext(key_pair=KEY), reports)
    entry = Map.of([(KEY.public_key, Signed.sign(KEY, to_cell({"db": 1})))])
    foreign = Index.of([(mine, entry), (Keyword("data"), EMPTY_INDEX)])
    assert same(lattice.merge(None, foreign, context), Index.of([(Keyword("data"), EMPTY_INDEX)]))
    own = Index.of([(mine, to_cell({"kept": 1}))])
    assert lattice.merge(own, Index.of([(mine, entry)]), context) is own
    assert reports == []


@pytest.mark.parametrize("key", [LOCAL_KEY, "local", b"local"], ids=repr)
def test_local_is_neither_sent_nor_taken(key: Value) -> None:
    shared = Index.of([(Keyword("data"), EMPTY_INDEX)])
    assert replicable(shared) is shared
    assert same(replicable(shared.put(key, to_cell({"secret": 1}))), shared)
    assert replicable(None) is None
    assert replicable("no root") == "no root"


def test_local_slots_are_written_whole_and_read_verified() -> None:
    root = set_local(None, KEY, Map.of([("a", 1), (Keyword("k"), 2)]))
    assert local_value(root, KEY.public_key, Keyword("k")) == 2
    assert local_value(root, KEY.public_key, Keyword("x")) is None
    assert local_value(root, OTHER.public_key) is None
    root = set_local(root, KEY, to_cell({"b": 1}))
    assert local_value(root, KEY.public_key) == to_cell({"b": 1})
    slot = local_slot(root, KEY.public_key)
    assert slot == Signed.sign(KEY, to_cell({"b": 1}))
    assert isinstance(root, Index)
    assert root.key_cell("local") == LOCAL_KEY


@pytest.mark.parametrize(
    "slot",
    [
        Signed.sign(OTHER, 1),
        Signed(KEY.public_key, bytes(64), 1),
        "unsigned",
    ],
    ids=["another signer", "bad signature", "unsigned"],
)
def test_a_local_slot_that_its_owner_did_not_sign_is_an_error(slot: Value) -> None:
    root = Index.of([(LOCAL_KEY, Map.of([(KEY.public_key, slot)]))])
    with pytest.raises(BadSignature, match="local slot"):
        local_value(root, KEY.public_key)


def test_node_info_has_its_fields_and_regions_only_when_there_are_any() -> None:
    info = node_info(5, ["tcp://a:1"], "peer", "0.1")
    assert same(
        info,
        Map.of(
            [
                (Keyword("timestamp"), 5),
                (Keyword("transports"), to_cell(["tcp://a:1"])),
                (Keyword("type"), "peer"),
                (Keyword("version"), "0.1"),
            ]
        ),
    )
    placed = node_info(5, [], "peer", "0.1", ["eu"])
    assert placed[Keyword("regions")] == to_cell(["eu"])
    assert placed[Keyword("transports")] == to_cell([])


def test_a_later_node_info_replaces_the_earlier_through_p2p() -> None:
    def state(stamp: int) -> Index:
        info = node_info(stamp, [], "peer", "0.1")
        entry = Map.of([(KEY.public_key, Signed.sign(KEY, info))])
        return Index.of([(Keyword("nodes"), entry)])

    old, new = state(1), state(2)
    assert P2P.merge(old, new) is new
    assert P2P.merge(new, old) is new
