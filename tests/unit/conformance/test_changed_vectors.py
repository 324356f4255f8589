"""A vector that was changed by one character fails, wherever the change is not equally true."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from datalattice.conformance.checks import Fields, Mismatch
from datalattice.conformance.registry import Case, find_format, find_runner

VECTORS = Path(__file__).parents[2] / "vectors"
FILES = sorted(
    path.name for path in VECTORS.glob("*.json") if path.name.startswith(("cells-", "lattice-"))
)

SAMPLES = 3
"""Changes of each field of each kind of vector."""

FIELDS_MAX = 60_000
"""Vectors that are longer than this many characters are left to the others of their kind."""

COMMENTS = {"id", "kind", "about", "why", "source", "decision", "group", "java_error"}

EQUALLY_TRUE = {
    # input whose neighbours have the same outcome (another malformed encoding is malformed too)
    "hex",
    "parse",
    "offset",
    "from",
    "to",
    "on",
    # entries that a later one with the same key replaces
    "index",
    "map",
    "set",
    # names and parameters that a vector's values need not exercise
    "children",
    "ext",
    "record",
    "double",
    "genblob",
    "int",
    "sha",
    "blob",
    "str",
    "kw",
}

ARGUMENTS = {
    # a read at another moment, in other bounds or of something else that is absent may say the
    # same, a later write may hide an earlier one, and only counters show a replica's name
    "lattice-kv.json": {"clock", "field", "key", "replica", "start", "stop"},
    "lattice-dlfs.json": {"data", "path", "position", "size", "time"},
}


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(node, dict):
        for name, inner in node.items():
            if name not in COMMENTS:
                yield from leaves(inner, (*path, name))
    elif isinstance(node, list):
        for position, inner in enumerate(node):
            yield from leaves(inner, (*path, position))
    elif isinstance(node, (str, int)) and node != "":
        yield path, node


def is_checked(path: tuple[Any, ...], fields: Any, arguments: set[str]) -> bool:
    names = [name for name in path if isinstance(name, str)]
    if "differs_from_step" in fields:  # what is written goes its own way, what is read agrees
        return names[-1] == "returns"
    if names[-1] in arguments:
        return False
    if any(name in EQUALLY_TRUE for name in names):
        return False
    if any(name.startswith("java_") or name.endswith("_java") for name in names):
        return names[-1] in {"enc", "hash"}  # the reference's cells agree with themselves at least
    return True


def changed(value: Any, random: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + random.choice([1, -1])
    position = random.randrange(len(value))
    old = value[position]
    digits = "0123456789abcdef"
    new = random.choice(digits.replace(old, "")) if old in digits else chr(ord(old) ^ 1)
    return value[:position] + new + value[position + 1 :]


def put(node: Any, path: tuple[Any, ...], value: Any) -> None:
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value


def fails(case: Case) -> bool:
    try:
        runner = find_runner(case.kind)
        if case.inspect is not None:
            case.inspect()
        runner(case.fields)
    except Exception:  # noqa: BLE001 - however it fails, it fails
        return True
    return False


@pytest.mark.parametrize("name", FILES)
def test_a_changed_character_fails(name: str) -> None:
    document = json.loads((VECTORS / name).read_text(encoding="utf-8"), object_hook=Fields)
    cases = find_format(document).cases
    random = Random(name)
    places: dict[tuple[Any, ...], list[tuple[int, tuple[Any, ...], Any]]] = defaultdict(list)
    for number, case in enumerate(cases(document)):
        if len(json.dumps(case.fields)) > FIELDS_MAX:
            continue
        for path, value in leaves(case.fields):
            if is_checked(path, case.fields, ARGUMENTS.get(name, set())):
                shape = tuple(step for step in path if isinstance(step, str))
                places[case.kind, *shape].append((number, path, value))
    unnoticed = []
    for found in places.values():
        for number, path, value in random.sample(found, min(SAMPLES, len(found))):
            vectors = list(document["vectors"])
            vectors[number] = copy.deepcopy(vectors[number])
            put(vectors[number], path, changed(value, random))
            case = list(cases(Fields(document | {"vectors": vectors})))[number]
            if not fails(case):
                unnoticed.append((case.id, path))
    assert unnoticed == []


@pytest.mark.parametrize("name", FILES)
def test_a_renamed_or_missing_field_fails(name: str) -> None:
    document = json.loads((VECTORS / name).read_text(encoding="utf-8"), object_hook=Fields)
    cases = find_format(document).cases
    seen: set[tuple[str, str]] = set()
    for number, case in enumerate(cases(document)):
        for field in case.fields:
            if field in COMMENTS or "java" in field or (case.kind, field) in seen:
                continue
            if len(json.dumps(case.fields)) > FIELDS_MAX or field in {"context", "merged_own_wins"}:
                continue
            seen.add((case.kind, field))
            vectors = list(document["vectors"])
            vectors[number] = Fields(
                (name + "x" if name == field else name, value)
                for name, value in vectors[number].items()
            )
            try:
                renamed = list(cases(Fields(document | {"vectors": vectors})))[number]
            except Mismatch:
                continue
            assert fails(renamed), f"{case.id}: {field} renamed"
