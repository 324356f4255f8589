"""Grid vectors: asset ids, merges, DIDs, write permissions, orchestrations.

These files list their cases by section. Hashes, ids and blobs are lower-case hex, keywords are
plain names and null is nil, so the reader of a JSON value depends on where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any, Final

from datalattice.apps.grid import (
    ASSETS_LATTICE,
    JOB_LATTICE,
    JOB_STATUSES,
    JOBS_LATTICE,
    META_LATTICE,
    PLAIN_GRID,
    STORAGE_LATTICE,
    VENUE,
    asset_id,
    check_content,
    did_method,
    document_url,
    may_write,
    parse_asset_id,
    read_metadata,
    sanitise,
)
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Value, encode, to_cell, value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_hex,
    as_text,
    expect,
)
from datalattice.conformance.notation import expect_cell
from datalattice.conformance.registry import Case, VectorFormat, register_format, register_kind
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.lattice import Lattice, MergeContext, MergeNotice, did_of, public_key_of
from datalattice.service.venue import JobStatus, is_allowed
from datalattice.service.venue.adapters import (
    dependencies,
    evaluate,
    merge_json,
    ready_steps,
    step_needs,
)

Reader = Callable[[Any], Value]
COMMENTS: Final = ("about", "form", "note", "tie_rule", "value_ids_note")
"""Members of a file that only describe it."""


def _index_of(keys: Callable[[str], Value], values: Reader) -> Reader:
    def read(given: Any) -> Value:
        if given is None:
            return None
        fields = as_fields(given, "an index")
        return Index.of({keys(key): values(value) for key, value in fields.items()})

    return read


def _parts_of(parts: dict[str, Reader]) -> Reader:
    def read(given: Any) -> Value:
        if given is None:
            return None
        fields = as_fields(given, "a state")
        fields.only(*parts)
        return Index.of({Keyword(name): parts[name](value) for name, value in fields.items()})

    return read


def _key(text: str) -> Value:
    return as_hex(text, "a key")


def _blob(given: Any) -> Value:
    # A number or an object in the position of a blob is a malformed content, which is merged too.
    return as_hex(given, "a blob") if isinstance(given, str) else to_cell(given)


_records: Final = _index_of(_key, to_cell)
_blobs: Final = _index_of(_key, _blob)
_venue: Final = _parts_of({"assets": _records, "jobs": _records, "storage": _blobs})
_grid: Final = _parts_of({"venues": _index_of(to_cell, _venue), "meta": _records})

_LEVELS: Final[dict[str, tuple[Lattice, Reader]]] = {
    "record": (JOB_LATTICE, to_cell),
    "jobs": (JOBS_LATTICE, _records),
    "meta": (META_LATTICE, _records),
    "storage": (STORAGE_LATTICE, _blobs),
    "assets": (ASSETS_LATTICE, _records),
    "venue": (VENUE, _venue),
    "grid": (PLAIN_GRID, _grid),
}


def _refuses(call: Callable[[], object], what: str) -> None:
    """Check that a call raises UsageError."""
    try:
        got = call()
    except UsageError:
        return
    raise Mismatch(f"{what} should have been refused, got {got!r}")


def _run_metadata(fields: Fields) -> None:
    fields.only("name", "metadata", "utf8_bytes", "asset_id")
    text = fields.text("metadata")
    # The id hashes bytes, so the length in UTF-8 is recorded beside it.
    fields.expect("utf8_bytes", len(text.encode()))
    fields.expect("asset_id", asset_id(text))


def _run_bad_metadata(fields: Fields) -> None:
    fields.only("name", "metadata")
    _refuses(lambda: asset_id(fields.text("metadata")), "the metadata")


def _run_asset_id(fields: Fields) -> None:
    fields.only("name", "text", "canonical")
    fields.expect("canonical", parse_asset_id(fields.text("text")))


def _run_bad_asset_id(fields: Fields) -> None:
    fields.only("name", "text")
    _refuses(lambda: parse_asset_id(fields.text("text")), "the asset id")


def _run_content(fields: Fields) -> None:
    known = ("name", "metadata", "content_hex", "content_sha256", "accept", "why")
    fields.only(*known)
    metadata = read_metadata(fields.text("metadata"))
    content = fields.hex("content_hex")
    wanted = fields.hex("content_sha256")
    expect("the entry is sound", True, STORAGE_LATTICE.check(wanted, content, None))
    # Sound by its own hash; whether it is the content that the metadata names is asked next.
    if fields.truth("accept"):
        expect("content_sha256", wanted, check_content(metadata, content))
    else:
        _refuses(lambda: check_content(metadata, content), "the content")


def _run_value_id(fields: Fields) -> None:
    fields.only("name", "metadata", "value_id")
    value = read_metadata(fields.text("metadata"))
    fields.expect("value_id", value_hash(value))


_TIE_FIELDS: Final = (
    "own_value_id",
    "own_encoding",
    "other_value_id",
    "other_encoding",
    "own_wins_policy_would_give",
)


def _run_merge(level: str) -> Callable[[Fields], None]:
    def run(fields: Fields) -> None:
        known = ("name", "own", "other", "expected", "note", "rejected_keys")
        fields.only(*known, *_TIE_FIELDS)
        lattice, read = _LEVELS[level]
        own, other, expected = (read(fields.need(name)) for name in ("own", "other", "expected"))
        for side, value in (("own", own), ("other", other)):
            if f"{side}_value_id" in fields:
                expect(f"{side}_value_id", fields.hex(f"{side}_value_id"), value_hash(value))
                expect(f"{side}_encoding", fields.hex(f"{side}_encoding"), encode(value))
        reports: list[MergeNotice] = []
        merged = lattice.merge(own, other, MergeContext(report=reports.append))
        expect_cell("merged", expected, merged)
        expect_cell("merged again", expected, lattice.merge(merged, other))
        rejected = [as_text(key, "rejected_keys") for key in fields.get("rejected_keys", [])]
        expect("rejected_keys", sorted(rejected), sorted(_last(one) for one in reports))
        # "run both ways where nothing is refused" (docs/conformance.md "Grid files"): of refused
        # entries the own ones stay, and those of the other are dropped.
        if not rejected and not sanitise(own, lattice)[1]:
            expect_cell("merged the other way", expected, lattice.merge(other, own))

    return run


def _last(report: MergeNotice) -> str:
    """Return the key of a refused value, as the files write it."""
    last = report.path[-1] if report.path else None
    if isinstance(last, bytes):
        return last.hex()
    if isinstance(last, str):
        return last
    raise Mismatch(f"a value as a whole was refused: {report!r}")


def _run_three_way(fields: Fields) -> None:
    fields.only("name", "a", "b", "c", "expected", "note")
    states = [_grid(fields.need(name)) for name in "abc"]
    expected = _grid(fields.need("expected"))
    # Commutative and associative: every order, both groupings.
    for a, b, c in permutations(states):
        expect_cell("(a b) c", expected, PLAIN_GRID.merge(PLAIN_GRID.merge(a, b), c))
        expect_cell("a (b c)", expected, PLAIN_GRID.merge(a, PLAIN_GRID.merge(b, c)))


def _run_key_order(fields: Fields) -> None:
    fields.only("name", "inserted", "iterated", "note")
    inserted = [as_text(did, "a DID") for did in fields.array("inserted")]
    iterated = [as_text(did, "a DID") for did in fields.array("iterated")]
    for order in (inserted, inserted[::-1]):  # the order of insertion must not show
        venues = EMPTY_INDEX
        for did in order:
            venues = venues.put(did, VENUE.zero())
        expect("iterated", iterated, [key for key, _ in venues.entries()])
    grid = Index.of({Keyword("venues"): venues, Keyword("meta"): EMPTY_INDEX})
    taken, rejected = sanitise(grid, PLAIN_GRID)
    if not rejected:
        # The key order of a sound grid survives a check of foreign data, too.
        expect_cell("sanitised", grid, taken)


def _run_zero(fields: Fields) -> None:
    fields.only("venue", "grid")
    expect_cell("venue", _venue(fields.need("venue")), VENUE.zero())
    expect_cell("grid", _grid(fields.need("grid")), PLAIN_GRID.zero())


def _run_key(fields: Fields) -> None:
    fields.only("seed", "public_key", "multikey", "did")
    key = KeyPair(fields.hex("seed")).public_key
    fields.expect("public_key", key)
    fields.expect("did", did_of(key))
    fields.expect("multikey", did_of(key).removeprefix("did:key:"))
    # There and back: a DID carries its key.
    expect("key of the DID", key, public_key_of(did_of(key)))


def _run_published(fields: Fields) -> None:
    fields.only("did", "public_key")
    did, key = fields.text("did"), fields.hex("public_key")
    expect("public_key", key, public_key_of(did))
    expect("did", did, did_of(key))


def _run_bad_did(fields: Fields) -> None:
    did = fields.text("given")
    expect("method", None, did_method(did))
    # A DID that is malformed has no key, so nothing below it can be verified.
    expect("public_key", None, public_key_of(did))


def _run_web_url(fields: Fields) -> None:
    fields.only("did", "url", "note")
    # A vector has a `did:web` of localhost, which it expects at http.
    fields.expect("url", document_url(fields.text("did"), allow_http=True))


def _run_write(fields: Fields) -> None:
    fields.only("name", "did", "signer", "document", "allowed", "note")
    did, signer = fields.text("did"), fields.hex("signer")
    allowed = may_write(did, signer, fields.need("document"))
    fields.expect("allowed", allowed)


def _run_status(kind: str) -> Callable[[Fields], None]:
    def run(fields: Fields) -> None:
        status = _status(fields.text("given"))
        expect("terminal", kind == "terminal", status.is_terminal)
        expect("interactive", kind == "interactive", status.is_interactive)
        # "Writing the same non-terminal status again is allowed."
        expect("again", kind != "terminal", is_allowed(status, status))

    return run


def _run_transition(fields: Fields) -> None:
    fields.only("from", "to", "allowed")
    before, after = (_status(fields.text(name)) for name in ("from", "to"))
    fields.expect("allowed", is_allowed(before, after))


def _status(text: str) -> JobStatus:
    if text not in JOB_STATUSES:
        raise Mismatch(f"unknown status {text!r}; known: {', '.join(JobStatus)}")
    return JobStatus(text)


def _run_specification(fields: Fields) -> None:
    fields.only("name", "spec", "input", "step_outputs", "depends_on", "value")
    specification, outputs = fields.need("spec"), fields.array("step_outputs")
    fields.expect("depends_on", list(dependencies(specification)))
    value = evaluate(specification, fields.need("input"), dict(enumerate(outputs)))
    expect_cell("value", to_cell(fields.need("value")), to_cell(value))


def _run_bad_specification(fields: Fields) -> None:
    fields.only("name", "spec")
    _refuses(lambda: dependencies(fields.need("spec")), "the specification")


def _run_plan(fields: Fields) -> None:
    fields.only("name", "step_inputs", "depends_on", "valid", "earliest_round")
    inputs = fields.array("step_inputs")
    needs = [dependencies(one) for one in inputs]
    fields.expect("depends_on", [list(one) for one in needs])
    if not fields.truth("valid"):
        _refuses(lambda: step_needs(inputs), "the plan")
        return
    done: dict[int, int] = {}  # step -> the round in which it ran, where rounds end together
    while found := ready_steps(step_needs(inputs), done, done):
        number = max(done.values(), default=-1) + 1
        done.update(dict.fromkeys(found, number))
    fields.expect("earliest_round", [done[n] for n in sorted(done)])


def _run_json_merge(fields: Fields) -> None:
    fields.only("name", "values", "result")
    merged = merge_json({"values": fields.array("values")})
    expect_cell("result", to_cell(fields.need("result")), to_cell(merged))


_FILES: Final[dict[str, dict[str, Callable[[Fields], None]]]] = {
    "assets": {
        "metadata": _run_metadata,
        "rejected_metadata": _run_bad_metadata,
        "asset_ids": _run_asset_id,
        "rejected_asset_ids": _run_bad_asset_id,
        "content": _run_content,
        "value_ids": _run_value_id,
    },
    "jobs": {
        "records": _run_merge("record"),
        "ties": _run_merge("record"),
        "job_maps": _run_merge("jobs"),
    },
    "collections": {
        "meta": _run_merge("meta"),
        "storage": _run_merge("storage"),
        "assets": _run_merge("assets"),
    },
    "merge": {
        "zero": _run_zero,
        "venue": _run_merge("venue"),
        "grid": _run_merge("grid"),
        "three_way": _run_three_way,
        "venue_key_order": _run_key_order,
    },
    "orchestrator": {
        "specs": _run_specification,
        "invalid_specs": _run_bad_specification,
        "plans": _run_plan,
        "json_merge": _run_json_merge,
    },
    "authority": {
        "keys": _run_key,
        "published_examples": _run_published,
        "bad_dids": _run_bad_did,
        "did_web_urls": _run_web_url,
        "writes": _run_write,
    },
    "lifecycle": {
        "active": _run_status("active"),
        "interactive": _run_status("interactive"),
        "terminal": _run_status("terminal"),
        "transitions": _run_transition,
    },
}
"""The sections of each file, and what runs their cases."""


def _recognises(sections: dict[str, Callable[[Fields], None]]) -> Callable[[Fields], bool]:
    """Return the recogniser of a file: it has only these sections, and comments."""

    def recognises(document: Fields) -> bool:
        members = set(document) - set(COMMENTS)
        # By its sections: these files have no header of their own.
        return "about" in document and bool(members) and members <= set(sections)

    return recognises


def _cases(file: str, sections: dict[str, Callable[[Fields], None]]) -> Callable[[Fields], Any]:
    def cases(document: Fields) -> Iterator[Case]:
        for section, given in document.items():
            if section in COMMENTS:
                continue
            if section not in sections:
                # A section that is not run proves nothing.
                raise Mismatch(f"unknown section {section!r}; known: {', '.join(sections)}")
            kind = f"grid-{file}-{section}"
            entries = given if isinstance(given, list) else [given]
            for position, entry in enumerate(entries):
                # Lists of bad DIDs and of statuses have bare strings.
                fields = entry if isinstance(entry, Fields) else Fields(given=entry)
                name = fields.get("name", f"#{position}")
                yield Case(f"{section}: {name}", kind, fields)

    return cases


def _register(file: str, sections: dict[str, Callable[[Fields], None]]) -> None:
    for section, run in sections.items():
        register_kind(f"grid-{file}-{section}", run)
    register_format(VectorFormat(f"grid-{file}", _recognises(sections), _cases(file, sections)))


for _file, _sections in _FILES.items():
    _register(_file, _sections)
