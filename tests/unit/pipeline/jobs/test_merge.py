"""Merge: whatever the inputs, their number and grouping, the hash is that of one process."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.apps.kv import Database
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    decode_message,
    encode_message,
    same,
    value_hash,
)
from datalattice.client import Folder, write_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import BadFormat, NoSigningKey, UsageError
from datalattice.lattice import assoc_in, get_in, root_lattice, set_local
from datalattice.pipeline.jobs import MergeJobReport, inputs, merge, output
from datalattice.pipeline.jobs.inputs import OpenStores
from datalattice.store import CellStore, import_cells
from datalattice.testing.malformed import with_blob, with_malformed_database
from datalattice.testing.replicas import ALICE, BOB, CAROL, SampleRoot, merged, run_here

pytest.importorskip("pyspark")

module = importlib.import_module("datalattice.pipeline.jobs.merge")  # the package shows its job

Run = Callable[..., MergeJobReport]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(module, "run_tasks", run_here)

    def call(inputs: list[str], **options: Any) -> MergeJobReport:
        return merge(None, inputs, **options)  # type: ignore[arg-type]  # no Spark is needed

    return call


def saved(replicas: list[SampleRoot], folder: Path) -> list[str]:
    return [one.save(folder / f"r{i}") for i, one in enumerate(replicas)]


def hash_of(path: Path) -> str:
    with CellStore.open(path) as store:
        assert store.check().is_clean
        found = store.root_hash()
    assert found is not None
    return found.hex()


def several_owners(count: int = 5) -> list[SampleRoot]:
    """Return forks of one root on which owners in turn write databases, queues and files."""
    start = SampleRoot().set(ALICE, {f"k{i}": i for i in range(40)}).offer(BOB, list(range(40)))
    found = []
    for i in range(count):
        keys = (ALICE, BOB, CAROL)[i % 3]
        fork = start.fork(10_000 * (i // 3 + 1))
        fork.set(keys, {f"k{j}": f"{i}-{j}" for j in range(i, 40, 3)}, f"d{i % 2}")
        fork.write(keys, lambda cursor, clock: _write_file(cursor, clock, keys, i))  # noqa: B023
        found.append(fork)
    return found


def _write_file(cursor: Any, clock: Any, keys: KeyPair, number: int) -> None:
    drive = Drive.at(cursor, keys.public_key, "home", clock)
    drive.write(f"/file{number}", bytes([number]) * 5_000)


def same_owner(count: int = 5, keys: int = 60) -> list[SampleRoot]:
    """Return forks of one root on which one owner wrote apart."""
    start = SampleRoot().set(ALICE, {f"k{i:04}": "v" * 100 for i in range(keys)})
    found = []
    for i in range(count):
        fork = start.fork(10_000 * (i + 1))
        fork.set(ALICE, {f"k{j:04}": f"{i}" for j in range(i, keys, count + 1)})
        fork.set(ALICE, {f"only{i}": i}, name="other")
        found.append(fork)
    return found


@pytest.mark.parametrize(
    ("make", "key", "fan_in"),
    [
        (several_owners, None, 2),
        (several_owners, ALICE, 3),
        (several_owners, BOB, 64),
        (same_owner, None, 64),
        (same_owner, ALICE, 2),
        (same_owner, BOB, 3),
    ],
)
def test_the_hash_is_that_of_one_process(
    make: Callable[[], list[SampleRoot]],
    key: KeyPair | None,
    fan_in: int,
    run: Run,
    tmp_path: Path,
) -> None:
    replicas = make()
    wanted = merged([one.root for one in replicas], key)
    report = run(saved(replicas, tmp_path), store=str(tmp_path / "made"), key=key, fan_in=fan_in)
    assert report.root == value_hash(wanted).hex()
    assert hash_of(tmp_path / "made") == report.root
    assert report.inputs == len(replicas)
    assert not list(tmp_path.glob("*.staging"))


@pytest.mark.parametrize("fan_in", [2, 64])
def test_large_databases_are_merged_by_ranges_to_the_same_hash(
    fan_in: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_KEYS", 10)
    replicas = same_owner(keys=95)
    wanted = merged([one.root for one in replicas], ALICE)
    report = run(saved(replicas, tmp_path), store=str(tmp_path / "made"), key=ALICE, fan_in=fan_in)
    assert report.root == value_hash(wanted).hex() == hash_of(tmp_path / "made")
    assert report.tasks >= 10


def test_any_number_of_ranges_is_put_together_with_few_stores_open(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_KEYS", 1)
    few = OpenStores(2)
    monkeypatch.setattr(inputs, "staged_stores", few)
    replicas = same_owner(2, keys=10)
    wanted = merged([one.root for one in replicas], ALICE)
    report = run(saved(replicas, tmp_path), store=str(tmp_path / "made"), key=ALICE)
    assert report.root == value_hash(wanted).hex() == hash_of(tmp_path / "made")
    assert report.tasks > 10
    assert len(few._stores) <= 2
    few.close()


def test_stores_that_work_needs_stay_open_and_others_make_room(tmp_path: Path) -> None:
    paths = [SampleRoot().set(ALICE, {"k": i}).save(tmp_path / f"r{i}") for i in range(4)]
    stores = OpenStores(2)
    first = [stores.get(path) for path in paths[:3]]
    assert [store.root_hash() is not None for store in first] == [True] * 3
    stores.done()
    stores.get(paths[1])
    stores.get(paths[3])
    assert list(stores._stores) == [paths[1], paths[3]]
    stores.close()


@pytest.mark.parametrize("limit", [9, 10])
def test_a_database_at_and_above_the_limit(
    limit: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_KEYS", limit)
    replicas = [SampleRoot().set(ALICE, {f"k{i}": i for i in range(10)}) for _ in range(2)]
    report = run(saved(replicas, tmp_path), store=str(tmp_path / "made"), key=ALICE)
    assert report.tasks == len(replicas) + (1 if limit >= 10 else 3)  # one checks each input
    assert report.root == value_hash(merged([one.root for one in replicas], ALICE)).hex()


def test_the_value_that_covers_all_keeps_its_own_signature(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_KEYS", 10)
    start = SampleRoot().set(ALICE, {f"k{i}": i for i in range(30)})
    later = start.fork(20_000).set(ALICE, {"k3": "new"})
    report = run(saved([start, later, start], tmp_path), store=str(tmp_path / "made"), key=ALICE)
    assert report.root == value_hash(later.root).hex()


def test_concurrent_values_that_nobody_may_sign_are_counted(run: Run, tmp_path: Path) -> None:
    replicas = same_owner(4)
    wanted = merged([one.root for one in replicas])
    report = run(saved(replicas, tmp_path), store=str(tmp_path / "made"), fan_in=2)
    assert report.root == value_hash(wanted).hex() == hash_of(tmp_path / "made")
    assert report.owner_forks == (f":kv 0x{ALICE.public_key.hex()}",)


def test_archives_stores_nodes_and_former_roots_are_inputs(run: Run, tmp_path: Path) -> None:
    one, two, three = several_owners(3)
    archive = one.export(tmp_path / "one.archive", tmp_path / "scratch")
    (tmp_path / "node").mkdir()
    two.save(tmp_path / "node" / "store")
    three.save(tmp_path / "three")
    with CellStore.open(tmp_path / "three") as store:
        store.pins.pin(value_hash(three.root), "kept")
        store.commit(Index())
    inputs = [archive, str(tmp_path / "node"), f"{tmp_path / 'three'}@kept"]
    report = run(inputs, store=str(tmp_path / "made"))
    wanted = merged([one.root, two.root, three.root])
    assert report.root == value_hash(wanted).hex() == hash_of(tmp_path / "made")


def test_an_archive_is_written(run: Run, tmp_path: Path) -> None:
    replicas = same_owner(3)
    made = tmp_path / "made.archive"
    report = run(saved(replicas, tmp_path), archive=str(made), key=ALICE)
    with CellStore.open(tmp_path / "check") as store, made.open("rb") as file:
        root, _ = import_cells(store, file.read)
    assert root.hex() == report.root
    assert root == value_hash(merged([one.root for one in replicas], ALICE))
    assert sorted(path.name for path in tmp_path.glob("made*")) == ["made.archive"]


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_node_takes_the_result_and_signs_its_own(
    is_empty: bool, run: Run, tmp_path: Path
) -> None:
    replicas = [*same_owner(3, keys=400), *several_owners(3)]
    folder = Folder(tmp_path / "hq")
    write_key(folder.key_path, ALICE)
    own: Value = None
    if not is_empty:
        own = set_local(SampleRoot().set(ALICE, {"mine": 1}).root, ALICE, "private")
        with CellStore.open(folder.store_path) as store:
            # A copy, because committed cells load from the store, which is closed below.
            store.commit(decode_message(encode_message(own)))
    report = run(saved(replicas, tmp_path), into=str(folder.path), fan_in=2)
    wanted = merged([one.root for one in replicas], ALICE, own)
    assert report.root == value_hash(wanted).hex() == hash_of(folder.store_path)
    assert not list((tmp_path / "hq").glob("staging"))
    again = run(saved(replicas, tmp_path / "again"), into=str(folder.path))
    assert again.root == report.root
    assert again.output_cells == 0


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_node_takes_large_databases_whole_unless_they_changed_meanwhile(
    is_changed: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_KEYS", 10)
    replicas = same_owner(keys=95)
    folder = Folder(tmp_path / "hq")
    write_key(folder.key_path, ALICE)
    own = (
        SampleRoot(None, 900_000)
        .set(ALICE, {f"k{i:04}": i for i in range(50)})
        .set(ALICE, {"x": 1}, "more")
    )
    own.save(folder.store_path)
    later = own.fork(990_000).set(ALICE, {"k0007": "changed meanwhile"})
    joined: list[bool] = []

    def adopted(root: Value, result: Any) -> Value:
        made = taken(root, result)
        joined.append(same(root, made))
        return made

    def tasks(*given: Any) -> list[bytes]:
        answers = run_here(*given)
        if is_changed:
            later.save(folder.store_path)
        return answers

    taken = output.adopted
    monkeypatch.setattr(output, "adopted", adopted)
    monkeypatch.setattr(module, "run_tasks", tasks)
    report = run(saved(replicas, tmp_path), into=str(folder.path))
    start = later if is_changed else own
    wanted = merged([one.root for one in replicas], ALICE, start.root)
    assert report.root == value_hash(wanted).hex() == hash_of(folder.store_path)
    assert joined == [is_changed]


def test_what_is_private_or_not_signed_by_its_owner_is_left_out(run: Run, tmp_path: Path) -> None:
    honest = SampleRoot().set(ALICE, {"k": 1})
    forged = Signed(BOB.public_key, bytes(64), get_in(honest.root, []))
    bad = assoc_in(honest.root, (Keyword("kv"), BOB.public_key), forged, root_lattice())
    bad = set_local(bad, ALICE, "private")
    report = run(saved([SampleRoot(bad), honest], tmp_path), store=str(tmp_path / "made"))
    assert report.root == value_hash(honest.root).hex()
    assert report.dropped == 1
    assert report.dropped_at == (f":kv 0x{BOB.public_key.hex()}",)
    assert report.root == hash_of(tmp_path / "made")


@pytest.mark.parametrize("is_archive", [False, True])
@pytest.mark.parametrize("is_node", [False, True])
def test_what_is_malformed_in_an_input_is_named_and_the_rest_is_merged(
    is_node: bool, is_archive: bool, run: Run, tmp_path: Path
) -> None:
    large: dict[str, object] = {f"k{i}": f"{i} ".ljust(200, "x") for i in range(60)}
    both = SampleRoot().set(BOB, {"b": 1}).set(CAROL, large)
    bad = SampleRoot(with_malformed_database(both.root, CAROL))
    honest = SampleRoot().set(ALICE, {"a": 1})
    folder = Folder(tmp_path / "hq")
    write_key(folder.key_path, ALICE)
    if is_node:
        SampleRoot().set(ALICE, {"own": 1}).save(folder.store_path)
    given = honest.save(tmp_path / "honest")
    name = str(tmp_path / "bad")
    bad_name = bad.export(tmp_path / "x", tmp_path / "bad") if is_archive else bad.save(Path(name))
    place = str(folder.path) if is_node else str(tmp_path / "made")
    report = run([bad_name, given], **{"into" if is_node else "store": place})
    (refused,) = report.refused
    assert refused.startswith(f"{bad_name}: :kv {CAROL.public_key.hex()}: not taken")
    assert report.dropped == 1
    with CellStore.open(folder.store_path if is_node else place, read_only=True) as store:
        assert store.check().is_clean
        assert not store.check().unsound
        for key in (ALICE, BOB):
            assert get_in(store.root(), (Keyword("kv"), key.public_key)) is not None
        assert get_in(store.root(), (Keyword("kv"), CAROL.public_key)) is None


def test_of_inputs_that_are_malformed_as_a_whole_nothing_is_written(
    run: Run, tmp_path: Path
) -> None:
    bad = with_blob(Index.of([(f"{n:02}", "x" * 200) for n in range(90)]))
    name = SampleRoot(bad).save(tmp_path / "bad")
    with pytest.raises(UsageError, match="no input can be merged"):
        run([name], store=str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_every_key_of_a_nodes_ring_signs_joins(run: Run, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "hq")
    write_key(folder.key_path, ALICE)
    write_key(folder.path / "keys" / "bob.key", BOB)
    forks = [SampleRoot(None, 1_000 * i).set(BOB, {f"b{i}": i}) for i in range(1, 4)]
    report = run(saved(forks, tmp_path), into=str(folder.path))
    assert report.owner_forks == ()
    with CellStore.open(folder.store_path, read_only=True) as store:
        root = RootLattice(root_lattice(), store.root())
        assert sorted(Database.at(root, BOB.public_key, "main").keys()) == ["b1", "b2", "b3"]


def test_a_section_that_is_none_has_no_databases(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGE_KEYS", 10)
    honest = SampleRoot().set(ALICE, {f"k{i}": i for i in range(30)})
    section = get_in(honest.root, [Keyword("kv")])
    assert isinstance(section, Map)
    strange = SampleRoot(assoc_in(honest.root, [Keyword("kv")], Index.of(section.entries())))
    other = SampleRoot().set(BOB, {"b": 1})
    for number, replicas in enumerate(([strange, other], [other, honest, strange])):
        made = tmp_path / f"made{number}"
        wanted = merged([one.root for one in replicas], ALICE)
        report = run(saved(replicas, tmp_path / f"in{number}"), store=str(made), key=ALICE)
        assert report.root == value_hash(wanted).hex() == hash_of(made)


def test_only_what_differs_is_staged(run: Run, tmp_path: Path) -> None:
    start = SampleRoot().set(ALICE, {f"k{i:05}": "v" * 150 for i in range(3_000)})
    forks = [start.fork(10_000 * i).set(ALICE, {f"k{i:05}": "new"}) for i in range(1, 5)]
    report = run(saved(forks, tmp_path), store=str(tmp_path / "made"), key=ALICE)
    assert report.output_cells > 300
    assert report.staged_cells < 30


def test_progress_and_report(run: Run, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    replicas = several_owners(3)
    report = run(
        saved(replicas, tmp_path),
        store=str(tmp_path / "made"),
        fan_in=2,
        progress=lambda *one: told.append(one),
    )
    steps = {step for step, _, _ in told}
    assert {"merge", "merge, round 2"} <= steps
    document = report.as_json()
    assert document["rounds"] == 2
    assert document["output"] == str(tmp_path / "made")
    assert report.seconds > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "name one output for the result"),
        ({"store": "made", "archive": "made2"}, "name one output for the result"),
        ({"store": "there"}, "exists; name a new path"),
        ({"store": "no/such/made"}, "is not a folder"),
        ({"store": "made", "fan_in": 1}, "fan_in is a number of 2 to 64, got 1"),
        ({"store": "made", "fan_in": 65}, "fan_in is a number of 2 to 64, got 65"),
    ],
)
def test_wrong_calls(options: dict[str, Any], text: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    given = SampleRoot().set(ALICE, {"k": 1}).save(tmp_path / "r")
    places = {
        name: str(tmp_path / value) if isinstance(value, str) else value
        for name, value in options.items()
    }
    with pytest.raises(UsageError, match=text):
        run([given], **places)
    assert not (tmp_path / "made").exists()


def test_wrong_inputs(run: Run, tmp_path: Path) -> None:
    made = str(tmp_path / "made")
    with pytest.raises(UsageError, match="inputs is empty"):
        run([], store=made)
    with pytest.raises(UsageError, match="no store, folder of a node, or archive here"):
        run([str(tmp_path / "nowhere")], store=made)
    CellStore.open(tmp_path / "empty").close()
    with pytest.raises(UsageError, match="nothing was ever committed there"):
        run([str(tmp_path / "empty")], store=made)
    given = SampleRoot().set(ALICE, {"k": 1}).save(tmp_path / "r")
    with pytest.raises(UsageError, match="nosuchpin"):
        run([f"{given}@nosuchpin"], store=made)
    with pytest.raises(NoSigningKey):
        run([given], into=str(tmp_path / "nokey"))
    write_key(Folder(tmp_path / "hq").key_path, ALICE)
    with pytest.raises(UsageError, match="whose own key signs"):
        run([given], into=str(tmp_path / "hq"), key=BOB)
    (tmp_path / "torn").write_bytes(b"DLAR nothing")
    with pytest.raises(BadFormat):
        run([given, str(tmp_path / "torn")], store=made)
    with pytest.raises(UsageError, match="an archive has one root"):
        run([f"{tmp_path / 'torn'}@HEAD"], store=made)
    assert not Path(made).exists()
    assert not list(tmp_path.glob("*.staging"))


def test_a_staging_folder_of_ones_own_stays(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "scratch"
    place.mkdir()
    given = [SampleRoot().set(ALICE, {"k": 1}).save(tmp_path / "r")]
    run(given, store=str(tmp_path / "made"), staging=str(place))
    assert place.is_dir()
    assert not list(place.iterdir())
    with pytest.raises(UsageError, match="cannot be written to"):
        run(given, store=str(tmp_path / "made2"), staging=f"{given[0]}/STORE")


def test_inputs_that_lack_cells_leave_nothing_behind(run: Run, tmp_path: Path) -> None:
    from datalattice.errors import Corruption, MissingData

    whole = SampleRoot().set(ALICE, {f"k{i}": "v" * 200 for i in range(100)})
    other = whole.fork(20_000).set(ALICE, {f"k{i}": "w" * 200 for i in range(100)})
    folder = Path(other.save(tmp_path / "r"))
    segment = next(iter(sorted((folder / "segments").iterdir())))
    data = bytearray(segment.read_bytes())
    at = data.find(b"w" * 150)
    data[at + 10] ^= 1
    segment.write_bytes(data)
    given = [whole.save(tmp_path / "r0"), str(folder)]
    with pytest.raises((Corruption, MissingData)):
        run(given, store=str(tmp_path / "made"), key=ALICE)
    assert not (tmp_path / "made").exists()
    shutil.rmtree(folder)


def test_the_index_of_sections_may_be_empty(run: Run, tmp_path: Path) -> None:
    report = run([SampleRoot(Index()).save(tmp_path / "r")], store=str(tmp_path / "made"))
    assert report.root == value_hash(Index()).hex()
