"""What the runner says about files it cannot run, and about vectors that do not hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datalattice.conformance import (
    Case,
    FileReport,
    Mismatch,
    Skipped,
    VectorFormat,
    known_kinds,
    list_files,
    register_format,
    register_kind,
    register_lattice_type,
    run_file,
    run_paths,
)
from datalattice.conformance.checks import Fields, as_decimal, as_hex, expect
from datalattice.errors import UsageError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_document(document: object, name: str = "vectors.json") -> Path:
        path = tmp_path / name
        text = document if isinstance(document, str) else json.dumps(document)
        path.write_text(text, encoding="utf-8")
        return path

    return write_document


def cells(*vectors: dict[str, Any], count: int | None = None) -> dict[str, Any]:
    return {
        "schema": "datalattice-cells-1",
        "about": "made by a test",
        "count": len(vectors) if count is None else count,
        "vectors": list(vectors),
    }


def lattice(*vectors: dict[str, Any]) -> dict[str, Any]:
    return {"format": 1, "group": "made by a test", "vectors": list(vectors)}


def only_reason(report: FileReport) -> str:
    assert report.passed == 0
    assert report.failed == 1
    return report.failures[0].reason


JSON_VECTOR = {"id": "one", "parse": "1", "enc": "1101", "out": "1"}


def test_a_good_vector_passes(write: Write) -> None:
    report = run_file(write(cells(JSON_VECTOR)))
    assert (report.passed, report.failed, report.skipped) == (1, 0, 0)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "does not hold a JSON object"),
        ("{}", "unknown file format; known: datalattice-cells-1"),
        ({"schema": "datalattice-cells-2", "vectors": []}, "unknown file format"),
        ({"format": 2, "group": "x", "vectors": []}, "unknown file format"),
        (cells(), "holds no vectors"),
        (lattice(), "holds no vectors"),
        ({"format": 1, "group": "x"}, "no array 'vectors'"),
        ({"format": 1, "group": "x", "vectors": [1]}, "vector 0 is not an object"),
        (cells(JSON_VECTOR, count=2), "says it holds 2 vectors, but holds 1"),
        ('{"schema": "a", "schema": "b"}', "holds the member 'schema' twice"),
        (lattice({"id": "a"}), "field 'kind' is missing"),
    ],
)
def test_a_file_that_cannot_be_run_is_one_failure_with_its_reason(
    write: Write, document: object, reason: str
) -> None:
    assert reason in only_reason(run_file(write(document)))


def test_bytes_that_are_not_text_are_one_failure(tmp_path: Path) -> None:
    path = tmp_path / "vectors.json"
    path.write_bytes(b"\xff\xfe\x00{")
    assert "not valid JSON" in only_reason(run_file(path))


def test_a_file_that_is_not_there_is_one_failure(tmp_path: Path) -> None:
    assert "No such file" in only_reason(run_file(tmp_path / "absent.json"))


def test_a_folder_runs_its_files_in_order_of_name(tmp_path: Path, write: Write) -> None:
    (tmp_path / "deep").mkdir()
    write(cells(JSON_VECTOR), "b.json")
    write(cells(JSON_VECTOR), "a.json")
    write(cells(JSON_VECTOR), "deep/c.json")
    write("no vectors", "readme.txt")
    assert [path.name for path in list_files([tmp_path])] == ["a.json", "b.json", "c.json"]
    assert sum(report.passed for report in run_paths([tmp_path])) == 3


def test_a_folder_without_files_is_a_failure(tmp_path: Path) -> None:
    (report,) = run_paths([tmp_path])
    assert "no .json file" in only_reason(report)


@pytest.mark.parametrize(
    "vector",
    [
        {"id": "a", "kind": "weaver-sequence", "steps": []},
        {"id": "a", "kind": "no-such-kind"},
    ],
)
def test_an_unknown_kind_is_a_failure_that_names_it(write: Write, vector: dict[str, Any]) -> None:
    reason = only_reason(run_file(write(lattice(vector))))
    assert f"unknown kind {vector['kind']!r}" in reason
    assert "merge" in reason, "the known ones are named"


def test_an_unknown_lattice_type_is_a_failure_that_names_it(write: Write) -> None:
    vector = {"id": "a", "kind": "zero", "lattice": {"type": "weaver"}, "zero": None}
    assert "unknown lattice type 'weaver'" in only_reason(run_file(write(lattice(vector))))


def test_one_bad_vector_does_not_stop_the_others(write: Write) -> None:
    bad = {**JSON_VECTOR, "id": "two", "enc": "1102"}
    report = run_file(write(cells(bad, JSON_VECTOR, {"id": "three"}, {"id": "four", "v": {}})))
    assert report.passed == 1
    assert [failure.id for failure in report.failures] == ["two", "three", "four"]
    assert "expected 1102, got 1101" in report.failures[0].reason


def test_whatever_a_vector_provokes_is_its_failure(write: Write) -> None:
    def crash(_: object) -> None:
        raise ZeroDivisionError("by the test")

    register_kind("test-crash", crash)
    report = run_file(write(lattice({"id": "a", "kind": "test-crash"})))
    assert "ZeroDivisionError: by the test" in only_reason(report)


def test_skipped_vectors_are_counted_and_skipping_all_is_a_failure(write: Write) -> None:
    def skip(_: object) -> None:
        raise Skipped("not on this machine")

    register_kind("test-skip", skip)
    vector = {"id": "a", "kind": "test-skip"}
    good = {"id": "b", "kind": "zero", "lattice": {"type": "min"}, "zero": None}
    report = run_file(write(lattice(vector, good)))
    assert (report.passed, report.failed, report.skipped) == (1, 0, 1)
    alone = run_file(write(lattice(vector)))
    assert (alone.passed, alone.failed, alone.skipped) == (0, 1, 1)


def test_other_packages_add_formats_and_kinds(write: Write) -> None:
    def recognises(document: Any) -> bool:
        return bool(document.get("title") == "a test's own")

    def cases(document: Any) -> list[Case]:
        return [Case(str(n), "test-even", Fields(n=n)) for n in document["numbers"]]

    def even(fields: Any) -> None:
        expect("remainder", 0, fields["n"] % 2)

    register_format(VectorFormat("a test's own", recognises, cases))
    register_kind("test-even", even)
    assert "test-even" in known_kinds()
    report = run_file(write({"title": "a test's own", "numbers": [2, 3, 4]}))
    assert report.passed == 2
    assert [failure.id for failure in report.failures] == ["3"]


def test_nothing_is_registered_twice() -> None:
    with pytest.raises(UsageError, match="'merge' is registered already"):
        register_kind("merge", lambda _: None)
    with pytest.raises(UsageError, match="registered already"):
        register_format(VectorFormat("datalattice-cells-1", lambda _: False, lambda _: []))
    with pytest.raises(UsageError, match="'queue' is registered already"):
        register_lattice_type("queue", lambda _: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("text", ["AB", "a", "ab ", " ab", "0x12", "zz"])
def test_hex_is_taken_in_one_form_only(text: str) -> None:
    with pytest.raises(Mismatch, match="hex"):
        as_hex(text, "field")


@pytest.mark.parametrize("text", ["", "-", "01", "-01", "+1", "1.0", " 1", "1_0", "٣"])
def test_decimals_are_taken_in_one_form_only(text: str) -> None:
    with pytest.raises(Mismatch, match="decimal"):
        as_decimal(text, "field")


def test_decimals_of_any_length_are_read() -> None:
    assert as_decimal("-" + "9" * 9000, "field") == -(10**9000 - 1)
    assert as_decimal("0", "field") == 0


@pytest.mark.parametrize(("a", "b"), [(1, True), (1, 1.0), ("1", 1), (b"", ""), (None, False)])
def test_values_of_different_types_are_never_equal(a: object, b: object) -> None:
    with pytest.raises(Mismatch):
        expect("x", a, b)


def test_fields_nobody_knows_are_refused_but_comments_of_the_reference_are_not() -> None:
    Fields(id=1, java_states=1, merged_java=1).only("id")
    with pytest.raises(Mismatch, match="unknown field 'idd'; known: id"):
        Fields(idd=1).only("id")
