"""Venues: assets, content, jobs, hiding, and merges that say what they did."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import (
    GRID,
    GRID_ROOT,
    GRID_SECTION,
    JOB_STATUSES,
    PLAIN_GRID,
    TERMINAL,
    VENUE,
    ContentBackend,
    DriveBackend,
    FileBackend,
    FixedResolver,
    KnownKeys,
    MemoryBackend,
    Storage,
    Venue,
    asset_id,
    check_foreign,
    hidden_entries,
    initial_root,
    make_job_id,
    parse_asset_id,
    parse_job_id,
    plain_grid,
    read_metadata,
    sanitise,
    venue_document,
    venue_lattice,
    view,
)
from datalattice.apps.grid.assets import content_hash
from datalattice.apps.grid.jobs import JOB_COUNT_MAX
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Blob,
    Index,
    Keyword,
    Map,
    Signed,
    Text,
    Value,
    Vector,
    decode,
    encode,
    make_blob,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.cursors import RootLattice
from datalattice.errors import (
    BadSignature,
    Corruption,
    LimitExceeded,
    NoSigningKey,
    NoSuchPath,
    UsageError,
)
from datalattice.lattice import (
    LOCAL_KEY,
    MaxLattice,
    MergeContext,
    assoc_in,
    did_of,
    get_in,
    root_lattice,
)
from datalattice.store import CellStore
from datalattice.testing.clocks import StoppedClock

KEYS = [KeyPair.generate(SeededEntropy(number)) for number in range(3)]
DIDS = [did_of(key.public_key) for key in KEYS]
VENUES, META, ASSETS, JOBS, STORAGE = map(Keyword, ("venues", "meta", "assets", "jobs", "storage"))


def anybody(_owner: Value, _signer: bytes) -> bool:
    return True


def venue_of(number: int = 0, **options: Any) -> Venue:
    return Venue.create(KEYS[number], entropy=SeededEntropy(number), **options)


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def artifact(content: bytes, **more: object) -> str:
    return json.dumps({"content": {"sha256": sha(content).hex()}, **more})


# --- assets ----------------------------------------------------------------------------------


def test_an_asset_is_its_exact_text_in_both_places_at_once() -> None:
    venue = venue_of()
    text = ' {"name" : "x", "n": 1.0}\n'
    asset = venue.register(text)
    assert asset == sha(text.encode()) == asset_id(text) == asset_id(text.encode())
    assert venue.asset(asset) == venue.asset(f"a/{asset.hex()}") == text
    assert get_in(venue.grid, [META, asset]) == text
    assert venue.assets() == [asset]
    before = venue.grid
    assert venue.register(text.encode()) == asset
    assert venue.grid is before
    assert check_foreign(venue.grid)
    assert venue.metadata(asset)["n"] == 1.0


def test_a_long_text_is_kept_as_it_is() -> None:
    venue = venue_of()
    text = json.dumps({"name": "é" * 5_000}, ensure_ascii=False)
    asset = venue.register(text)
    assert venue.asset(asset) == text
    assert isinstance(get_in(venue.grid, [META, asset]), Text)
    assert check_foreign(venue.grid)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{} {}",
        "\ufeff{}",
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        '{"a":NaN}',
        '{"a":1,}',
        "{'a':1}",
    ],
)
def test_what_is_no_metadata_is_refused_and_nothing_is_written(text: str | bytes) -> None:
    venue = venue_of()
    before = venue.grid
    with pytest.raises(UsageError, match="metadata is one JSON object"):
        venue.register(text)
    assert venue.grid is before


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_metadata_has_a_limit(over: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.apps.grid.assets.CONTENT_BYTES_MAX", 100)
    text = '{"a":"' + "x" * (100 - 8 + over) + '"}'
    if over > 0:
        with pytest.raises(UsageError, match="at most 100 bytes"):
            read_metadata(text)
    else:
        assert len(read_metadata(text)) == 1


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_merge_hashes_no_more_than_the_limit(over: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datalattice.apps.grid.assets.CONTENT_BYTES_MAX", 10_000)
    blob = make_blob(b"x" * (10_000 + over))
    assert (content_hash(blob) is None) == (over > 0)


def test_a_few_cells_that_stand_for_any_number_of_bytes_are_not_read() -> None:
    data = encode(make_blob(bytes(4096 * 16)))
    for level in range(2, 12):  # each refers sixteen times to the one below
        data = b"\x31" + vlq(4096 * 16**level) + (b"\x20" + value_hash(decode(data))) * 16
    huge = decode(data)
    assert isinstance(huge, Blob)
    assert huge.byte_length() > 1 << 50
    assert content_hash(huge) is None


def vlq(number: int) -> bytes:
    out = [number & 0x7F]
    while number := number >> 7:
        out.append(number & 0x7F | 0x80)
    return bytes(reversed(out))


@pytest.mark.parametrize(
    "given",
    [b"x" * 31, 7, None, "", "x" * 64, "0x", "b/" + "0" * 64, "did:web:a/b/" + "0" * 64, " " * 64],
)
def test_other_ids_are_refused(given: object) -> None:
    with pytest.raises(UsageError, match="an asset id is"):
        parse_asset_id(given)


@pytest.mark.parametrize(("offset", "shown"), [(0, 2), (1, 1), (2, 0), (3, 0), (2**64 - 1, 0)])
def test_a_page_of_assets_begins_anywhere(offset: int, shown: int) -> None:
    venue = venue_of()
    ids = {venue.register(json.dumps({"name": name})) for name in "ab"}
    total, page = venue.asset_page(offset, 10)
    assert (total, len(page)) == (2, shown)
    assert set(page) <= ids


def test_an_asset_of_another_venue_is_read_by_its_id() -> None:
    here, there = venue_of(0), venue_of(1)
    asset = there.register('{"name":"there"}')
    assert here.asset(asset) is None
    with pytest.raises(NoSuchPath, match="no asset"):
        here.metadata(asset)
    here.merge(there.grid)
    assert here.asset(asset) == '{"name":"there"}'
    assert (here.assets(), here.assets(DIDS[1])) == ([], [asset])
    with pytest.raises(UsageError, match="named by its DID"):
        here.assets("venue")


# --- content ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lattice", "memory", "file", "drive"])
def test_content_goes_where_the_storage_is(kind: str, tmp_path: Path) -> None:
    places: dict[str, ContentBackend] = {
        "memory": MemoryBackend(),
        "file": FileBackend(str(tmp_path)),
        "drive": DriveBackend(Drive.create()),
    }
    storage = Storage(places[kind]) if kind in places else None
    if storage is not None:
        storage.initialise()
    venue = venue_of(storage=storage)
    content = b"data" * 3_000
    first, second = venue.register(artifact(content)), venue.register(artifact(content, n=2))
    assert venue.content(first) is None
    assert (venue.has_content(first), venue.has_content(venue.register("{}"))) == (False, None)
    assert venue.put_content(first, content) == sha(content)
    assert venue.content(first) == venue.content(second) == content
    assert venue.has_content(second)
    assert len(venue.storage) == 1
    assert (get_in(venue.view()[venue.did], [STORAGE, sha(content)]) is not None) == (
        kind == "lattice"
    )
    with pytest.raises(UsageError, match="is not"):
        venue.put_content(first, b"other")
    assert venue.verify() == ([], [])


def test_content_is_refused_where_none_is_declared() -> None:
    venue = venue_of()
    for text in ("{}", '{"content":7}', '{"content":{}}', '{"content":{"sha256":"00"}}'):
        with pytest.raises(UsageError, match=r"declares no content|is not 64 hex digits"):
            venue.put_content(venue.register(text), b"")
    with pytest.raises(NoSuchPath):
        venue.put_content(bytes(32), b"")
    storage = Storage(MemoryBackend(), 3)
    storage.initialise()
    small = venue_of(storage=storage)
    with pytest.raises(LimitExceeded):
        small.put_content(small.register(artifact(b"four")), b"four")


def test_content_of_another_venue_is_served_from_the_lattice_and_checked() -> None:
    here, there = venue_of(0), venue_of(1)
    asset = there.register(artifact(b"theirs"))
    there.put_content(asset, b"theirs")
    here.merge(there.grid)
    assert here.content(asset) == b"theirs"
    state = here.view()[DIDS[1]].put(STORAGE, Index.of({sha(b"theirs"): b"damage"}))
    slot = Signed.sign(KEYS[1], state)  # which a write would refuse
    here.cursor.adopt(lambda grid: assoc_in(grid, (VENUES, DIDS[1]), slot, GRID))
    with pytest.raises(Corruption, match="damaged"):
        here.content(asset)
    rejected, _ = here.verify()
    assert {reason for _, reason in rejected} == {"bad-content", "entry-dropped"}


def test_a_damaged_asset_is_an_error_and_not_served() -> None:
    venue = venue_of()
    venue.cursor.assoc_in("{}", META, sha(b"true"))
    with pytest.raises(Corruption, match="another hash"):
        venue.asset(sha(b"true"))


# --- jobs ------------------------------------------------------------------------------------


def test_a_job_is_stamped_later_each_time_and_stays_as_it_ended() -> None:
    clock = StoppedClock()
    venue = venue_of(clock=clock)
    job = venue.create_job({"op": "00", "input": {"a": [1, None]}, "caller": DIDS[0]})
    record = venue.job(job)
    assert record is not None
    assert (record["id"], record["status"]) == (job.hex(), "PENDING")
    assert (record["created"], record["updated"]) == (1_000, 1_000)
    assert venue.update_job(job.hex(), {"status": "STARTED"})["updated"] == 1_001
    clock.now = 5
    assert venue.update_job("0X" + job.hex().upper(), {"message": "m"})["updated"] == 1_002
    clock.now = 9_000
    done = venue.update_job(job, {"status": "COMPLETE", "output": 3})
    assert (done["updated"], done["created"], done["message"]) == (9_000, 1_000, "m")
    with pytest.raises(UsageError, match="has ended"):
        venue.update_job(job, {"status": "FAILED"})
    assert venue.job(job) == done
    assert check_foreign(venue.grid)


def test_jobs_are_listed_in_order_by_state_and_by_time() -> None:
    clock = StoppedClock()
    venue = venue_of(clock=clock)
    jobs = []
    for number in range(4):
        clock.now = 1_000 + number // 2
        jobs.append(venue.create_job())
    assert jobs == sorted(jobs) == venue.jobs()
    clock.now = 2_000
    venue.update_job(jobs[1], {"status": "FAILED", "error": "e"})
    assert venue.jobs(status="FAILED") == [jobs[1]]
    assert venue.jobs(since_ms=1_001) == jobs[1:]
    assert venue.jobs(since_ms=2_000) == [jobs[1]]
    assert venue.jobs(DIDS[1]) == []
    assert venue.job(jobs[0], DIDS[1]) is None


def test_ids_go_on_within_a_millisecond_and_when_the_clock_steps_back() -> None:
    entropy = SeededEntropy(1)
    first = make_job_id(5, None, entropy)
    assert first[:8] == b"\0\0\0\0\0\x05\0\0"
    assert make_job_id(5, first, entropy)[:8] == b"\0\0\0\0\0\x05\0\x01"
    assert make_job_id(4, first, entropy)[:8] == b"\0\0\0\0\0\x05\0\x01"
    assert make_job_id(6, first, entropy)[:8] == b"\0\0\0\0\0\x06\0\0"
    last = first[:6] + JOB_COUNT_MAX.to_bytes(2, "big") + first[8:]
    assert make_job_id(5, last, entropy)[:8] == b"\0\0\0\0\0\x06\0\0"


def test_wrong_jobs_are_refused() -> None:
    venue = venue_of()
    job = venue.create_job()
    for members in ({"status": "DONE"}, {"status": None}, {"id": "x"}, {"updated": 1}, {1: 2}, 7):
        with pytest.raises(UsageError):
            venue.create_job(members)  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            venue.update_job(job, members)  # type: ignore[arg-type]
    with pytest.raises(NoSuchPath, match="no job"):
        venue.update_job(b"other", {})
    for given in ("", b"", "0", "x", b"x" * 33, 7, None):
        with pytest.raises(UsageError, match="a job id"):
            parse_job_id(given)
    assert TERMINAL < JOB_STATUSES
    assert venue.jobs() == [job]


# --- keys and owners -------------------------------------------------------------------------


def test_a_venue_writes_with_its_own_key_only() -> None:
    with pytest.raises(NoSigningKey, match="is not that of"):
        Venue.create(KEYS[0], DIDS[1])
    with pytest.raises(UsageError, match="the DID of a venue"):
        Venue.at(RootLattice(GRID_ROOT, None), "north")
    with pytest.raises(UsageError, match="the DID of a venue"):
        Venue.create(KEYS[0], "did:example:1")
    reader = Venue.at(RootLattice(root_lattice(), None), DIDS[0])
    for call in (
        lambda: reader.register("{}"),
        lambda: reader.create_job(),  # noqa: PLW0108 - all of one form
        lambda: reader.hide("assets", bytes(32)),
    ):
        with pytest.raises(NoSigningKey, match="needs its key pair"):
            call()
    assert reader.assets() == []


def test_a_state_that_the_key_did_not_sign_is_not_written_over() -> None:
    good = Signed.sign(KEYS[0], VENUE.zero())
    bad = Signed(good.public_key, bytes(64), good.value)
    grid = Index.of([(GRID_SECTION, Index.of([(VENUES, Index.of([(DIDS[0], bad)]))]))])
    venue = Venue.at(RootLattice(root_lattice(), grid), KEYS[0])
    with pytest.raises(BadSignature):
        venue.register("{}")
    with pytest.raises(BadSignature):
        venue.assets()


def test_a_web_venue_is_believed_by_its_document() -> None:
    did = "did:web:venue.example"
    documents: dict[str, Any] = {}
    keys = KnownKeys(FixedResolver(documents))
    web, here = Venue.create(KEYS[1], did), venue_of(0, keys=keys)
    asset = web.register("{}")
    report = here.merge(web.grid)
    assert (report.changed, did in here.view()) == ((), False)
    assert report.rejected == (((VENUES, did), "not-owner"),)
    documents[did] = venue_document(did, KEYS[1].public_key)
    assert here.merge(web.grid).changed == (did,)
    assert here.assets(did) == [asset]
    stranger = Venue.create(KEYS[2], did)
    stranger.create_job()
    assert here.merge(stranger.grid).rejected == (((VENUES, did), "not-owner"),)
    assert web.verify() == ([], [])


def test_a_venue_stands_under_the_id_of_its_document_alone() -> None:
    """Two DIDs whose hosts serve one document are one venue, and one of them is its key."""
    canonical, alias = "did:web:venue.example", "did:web:www.venue.example"
    document = {**venue_document(canonical, KEYS[1].public_key), "alsoKnownAs": [alias]}
    documents = {canonical: document, alias: document}
    here = venue_of(0, keys=KnownKeys(FixedResolver(documents)))
    first, second = Venue.create(KEYS[1], canonical), Venue.create(KEYS[1], alias)
    asset = first.register("{}")
    second.register('{"name":"of the alias"}')
    assert here.merge(second.grid).rejected == (((VENUES, alias), "not-owner"),)
    assert here.merge(first.grid).changed == (canonical,)
    assert here.merge(second.grid).changed == ()
    assert list(here.view()) == [canonical]
    assert here.assets(canonical) == [asset]


# --- merging ---------------------------------------------------------------------------------


def test_a_merge_says_what_changed_and_what_was_refused() -> None:
    here, there = venue_of(0), venue_of(1)
    job = there.create_job()
    there.register("{}")
    assert here.merge(there.grid).changed == (DIDS[1],)
    assert here.merge(there.grid).changed == ()
    there.update_job(job, {"status": "STARTED"})
    there.cursor.assoc_in("tampered", META, bytes(32))
    report = here.merge(Index.of({GRID_SECTION: there.grid}))
    assert report.jobs == {DIDS[1]: (job,)}
    assert report.rejected == (((META, bytes(32)), "bad-metadata"),)
    assert value_hash(here.view()[DIDS[1]]) == value_hash(there.view()[DIDS[1]])
    nothings: list[object] = [None, {}, EMPTY_INDEX]
    for nothing in nothings:
        assert here.merge(nothing).rejected == ()
    assert here.merge(7).rejected == (((), "entry-dropped"),)


def test_two_nodes_of_one_venue_are_joined_by_whoever_has_its_key() -> None:
    one, two, relay = venue_of(0), venue_of(0), venue_of(1)
    first, second = one.register('{"n":1}'), two.register('{"n":2}')
    relay.merge(one.grid)
    report = relay.merge(two.grid)
    assert report.rejected == (((VENUES, DIDS[0]), "owner-forked"),)
    assert relay.assets(DIDS[0]) in ([first], [second])
    again = venue_of(1)
    again.merge(two.grid)
    again.merge(one.grid)
    assert again.assets(DIDS[0]) == relay.assets(DIDS[0])  # whichever came first
    one.merge(two.grid)
    assert one.assets() == sorted([first, second])
    assert relay.merge(one.grid).changed == (DIDS[0],)
    assert relay.assets(DIDS[0]) == one.assets()


def test_a_fork_is_private_until_it_is_synced() -> None:
    venue = venue_of()
    first = venue.register('{"n":1}')
    fork = venue.fork()
    second, third = fork.register('{"n":2}'), venue.register('{"n":3}')
    content = fork.register(artifact(b"x"))
    fork.put_content(content, b"x")
    assert venue.assets() == sorted([first, third])
    fork.sync()
    assert venue.assets() == fork.assets() == sorted([first, second, third, content])
    assert venue.content(content) == b"x"
    assert venue.verify() == ([], [])


def test_hidden_entries_stay_in_the_grid_and_out_of_the_lists(tmp_path: Path) -> None:
    with CellStore.open(tmp_path) as store:
        root = RootLattice(
            root_lattice(), None, MergeContext(key_pair=KEYS[0]), on_sync=committed(store)
        )
        venue = Venue.at(root, KEYS[0])
        asset, job = venue.register(artifact(b"x")), venue.create_job()
        venue.put_content(asset, b"x")
        before = value_hash(venue.grid)
        venue.hide("assets", asset)
        venue.hide("jobs", job)
        venue.hide("storage", sha(b"x"))
        assert (venue.assets(), venue.jobs(), venue.content(asset)) == ([], [], None)
        assert value_hash(venue.grid) == before
        venue.sync()
    with CellStore.open(tmp_path) as store:
        again = Venue.at(RootLattice(root_lattice(), store.root()), KEYS[0])
        assert (again.assets(), again.jobs()) == ([], [])
        again.unhide("jobs", job)
        assert again.jobs() == [job]
        again.register(artifact(b"x"))
        again.put_content(asset, b"x")
        assert (again.assets(), again.content(asset)) == ([asset], b"x")
        with pytest.raises(UsageError, match="`part` is not one of"):
            again.hide("meta", asset)


def test_what_is_hidden_is_told_of_a_whole_root_if_its_list_is_signed() -> None:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS[0]))
    venue = Venue.at(root, KEYS[0])
    assert hidden_entries(None) == hidden_entries(root.get()) == []
    job = venue.create_job()
    venue.hide("jobs", job)
    (listed,) = hidden_entries(root.get())
    assert list(listed) == [Vector.of([venue.did, Keyword("jobs"), job])]
    slots = root.get(LOCAL_KEY)
    assert isinstance(slots, Map)
    slot = slots.get(KEYS[0].public_key)
    assert isinstance(slot, Signed)
    for owner, forged in (
        (KEYS[1].public_key, slot),  # another key's slot
        (KEYS[0].public_key, Signed(KEYS[0].public_key, bytes(64), slot.value)),
        (KEYS[0].public_key, slot.value),
    ):
        assert hidden_entries(Index.of({LOCAL_KEY: Map.of({owner: forged})})) == []


def committed(store: CellStore) -> Any:
    def commit(value: Value) -> Value:
        store.commit(value)
        return value

    return commit


# --- lattices --------------------------------------------------------------------------------


def test_the_root_has_a_path_to_everything() -> None:
    assert same(initial_root(), Index.of({GRID_SECTION: GRID.zero()}))
    job = GRID_ROOT.path(GRID_SECTION, VENUES, DIDS[0], Keyword("value"), JOBS, b"1")
    plain = PLAIN_GRID.path(VENUES, DIDS[0], "jobs", b"1")
    assert job is plain is not None
    for path in ([META, b"1"], [Keyword("other")], [VENUES, DIDS[0], "value", STORAGE, b"1"]):
        assert GRID.path(*path) is None
    assert root_lattice().path(GRID_SECTION) is GRID
    assert GRID.resolve_path(["venues", DIDS[0], "value", "jobs"]) is not None
    assert GRID.resolve_path(["venues", "no did"]) is None


def test_a_foreign_state_is_brought_to_normal_form() -> None:
    for poor in (EMPTY_MAP, EMPTY_INDEX, Index.of({ASSETS: EMPTY_MAP}), Index.of({JOBS: None})):
        assert same(VENUE.merge(None, poor), VENUE.zero())
    grid = Index.of({VENUES: Index.of({"did:web:a": EMPTY_MAP}), Keyword("other"): 1})
    taken, rejected = sanitise(grid, PLAIN_GRID)
    assert (view(taken), rejected) == ({"did:web:a": VENUE.zero()}, [])
    bad = Index.of({JOBS: 7, STORAGE: Map.of({1: 2})})
    reasons = sanitise(bad, VENUE)[1]
    assert reasons == [((JOBS,), "bad-job"), ((STORAGE,), "bad-content")]
    assert not check_foreign(bad, VENUE)


@pytest.mark.parametrize("more", range(4))
def test_a_state_with_a_bad_entry_is_refused_alike_whatever_is_here_already(more: int) -> None:
    """Else two nodes, one of which knows a former state, never have the same root again."""

    def state(content: bytes, count: int) -> Index:
        storage = {sha(b"content"): content} | {sha(bytes([n])): bytes([n]) for n in range(count)}
        slot = Signed.sign(KEYS[0], Index.of({STORAGE: Index.of(storage)}))
        return Index.of({VENUES: Index.of({DIDS[0]: slot}), META: EMPTY_INDEX})

    known = GRID.merge(None, state(b"content", 1))
    bad = state(b"another", more)
    assert view(GRID.merge(None, bad)) == {}
    assert same(GRID.merge(known, bad), known)


def test_a_plain_peer_may_only_change_what_its_key_speaks_for() -> None:
    states = {did: VENUE.zero() for did in (*DIDS[:2], "did:web:a", "did:example:1", "x")}
    grid = Index.of({VENUES: Index.of(states), META: EMPTY_INDEX})
    taken, rejected = sanitise(grid, plain_grid(KEYS[0].public_key))
    assert list(view(taken)) == [DIDS[0]]
    assert sorted(reason for _, reason in rejected) == ["entry-dropped"] * 2 + ["not-owner"] * 2
    trusted = MergeContext(verifier=anybody)
    taken, _ = sanitise(grid, plain_grid(KEYS[0].public_key), trusted)
    assert list(view(taken)) == [DIDS[0], "did:web:a"]


def test_two_dids_of_one_beginning_do_not_take_each_other_s_place_unseen() -> None:
    start = "did:web:" + "a" * 24
    names = [start + end for end in ("one", "two")]
    grids = [
        Index.of({VENUES: Index.of({name: Signed.sign(KEYS[0], VENUE.zero())}), META: EMPTY_INDEX})
        for name in names
    ]
    context = MergeContext(verifier=anybody)
    merged = [GRID.merge(one, other, context) for one, other in (grids, grids[::-1])]
    assert same(merged[0], merged[1])
    assert list(view(merged[0])) == [max(names, key=value_hash)]
    # One whose key is not proven takes nobody's place.
    only_one = MergeContext(verifier=lambda owner, _signer: owner == names[0])
    assert GRID.merge(grids[0], grids[1], only_one) is grids[0]


def test_extensions_are_joined_and_unknown_parts_are_not() -> None:
    more = Keyword("schedule")
    lattice = venue_lattice({more: MaxLattice()})
    a, b = (VENUE.merge(None, EMPTY_INDEX), Index.of({more: 7, Keyword("other"): 1}))
    merged = lattice.merge(a, b)
    assert isinstance(merged, Index)
    assert [key for key, _ in merged.entries()] == [ASSETS, JOBS, more, STORAGE]
    assert merged[more] == 7
    assert more not in VENUE.zero()  # type: ignore[operator]


def test_what_a_venue_deletes_is_hidden_and_its_state_still_covers_the_earlier_ones() -> None:
    venue = Venue.create(KeyPair.generate(SeededEntropy(1)))
    digest = venue.storage.put(b"content")
    before = venue.grid
    assert venue.storage.delete(digest)
    assert not venue.storage.delete(digest)
    assert same(venue.grid, before)
    assert not venue.storage.exists(digest)
    assert list(venue.storage) == []
    assert venue.storage.get(digest) is None
    venue.merge(before)
    assert venue.storage.is_empty
    assert venue.storage.put(b"content") == digest
    assert venue.storage.get(digest) == b"content"
    assert list(venue.storage) == [digest]
