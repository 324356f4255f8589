"""Transcripts: recorded conversations with a node, and what must be equal when ours takes part.

A file `{"schema": "datalattice-node-transcript/1", "transcripts": [...]}` holds conversations. A
transcript holds the node's set-up and the steps on one connection, in order. Here are the rules for
one step; `node_player` has the connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from datalattice.cells import Value, decode, decode_parts, encode, value_hash
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_hex,
    as_list,
    as_text,
    expect,
    shown,
)
from datalattice.conformance.registry import Case
from datalattice.errors import PeerError
from datalattice.wire import FrameBuffer, Ping, Result, decode_payload, encode_length

_SCHEMA: Final = "datalattice-node-transcript/1"
TRANSCRIPT_KIND: Final = "node-transcript"

SENDS: Final = ("send", "client_to_server")
RECEIVES: Final = ("recv", "server_to_client")
OPS: Final = (*SENDS, *RECEIVES, "silence", "peer_closed", "state", "note")
OURS_OPS: Final = ("recv", "state", "closed", "serve")
SLOTS: Final = ("id", "result", "error", "log", "info")  # in the order of the record's fields

CONSTRUCTED_MAX: Final = 50_000_000
"""Longest input that a step may construct."""

_STEP_FIELDS: Final = (
    *("op", "bytes", "decoded", "note", "text", "raw", "construct", "skip", "closed", "at_ms"),
    *("ms", "how", "root_hash", "announced_hash", "printed", "expect", "ours", "volatile"),
)
_OURS_FIELDS: Final = (
    *("op", "end", "id", "error", "value", "value_hash", "root_hash", "announced_hash"),
)


def recognises(document: Fields) -> bool:
    """Return whether a file holds transcripts."""
    return document.get("schema") == _SCHEMA


def cases(document: Fields) -> Iterator[Case]:
    """Yield the transcripts that are played."""
    for position, node in enumerate(document.array("transcripts")):
        transcript = as_fields(node, f"transcript {position}")
        run = transcript.text("run")
        # "One with `run: skip` is not played and not counted." (docs/conformance.md "Node
        # transcripts"): only the reference can play it. Any other word is a fault of the file.
        if run == "server":
            yield Case(transcript.text("name"), TRANSCRIPT_KIND, transcript)
        elif run != "skip":
            raise Mismatch(f"run: 'server' or 'skip' is needed, got {shown(run)}")


# --- what a transcript says ---------------------------------------------------------------------


def checked_steps(transcript: Fields) -> list[Fields]:
    """Return the steps of a transcript.

    Raises: Mismatch: one has an unknown field, operation or expectation.
    """
    # All before the first is played: a fault of the file is not one of the node.
    steps = [as_fields(node, f"step {n}") for n, node in enumerate(transcript.array("steps"))]
    for number, step in enumerate(steps):
        try:
            _check_step(step)
        except Mismatch as mismatch:
            raise Mismatch(f"step {number}: {mismatch}") from mismatch
    return steps


def _check_step(step: Fields) -> None:
    step.only(*_STEP_FIELDS)
    op = step.text("op")
    if op not in OPS:
        raise Mismatch(f"op: one of {', '.join(OPS)} is needed, got {shown(op)}")
    # Nothing is compared in these steps.
    if op in (*SENDS, "note") or step.get("closed"):
        return
    expected = step.text("expect")
    if expected == "differ":
        ours = step.fields("ours")
        ours.only(*_OURS_FIELDS)
        if ours.text("op") not in OURS_OPS:
            raise Mismatch(f"ours: one of {', '.join(OURS_OPS)} is needed, got {shown(ours['op'])}")
    elif expected == "volatile":
        for entry in _volatile(step):
            if entry.text("field") not in SLOTS:
                raise Mismatch(f"volatile: one of {', '.join(SLOTS)} is needed, got {shown(entry)}")
    elif expected != "match":
        raise Mismatch(f"expect: match, volatile or differ is needed, got {shown(expected)}")
    if op in RECEIVES:
        _recorded(step)


def _volatile(step: Fields) -> list[Fields]:
    entries = [as_fields(node, "volatile") for node in step.array("volatile")]
    for entry in entries:
        entry.only("what", "field", "allow")
    return entries


def requested_cells(transcript: Fields) -> dict[bytes, bytes]:
    """Return the cells that our node may request: encodings by hash, both checked."""
    cells = {}
    for name, text in as_fields(transcript.get("cells", {}), "cells").items():
        encoding = as_hex(text, f"cell {name}")
        hash = value_hash(decode(encoding))
        expect(f"hash of cell {name}", name, hash.hex())
        cells[hash] = encoding
    return cells


def bytes_of(step: Fields) -> bytes:
    """Return what a sending step writes: its bytes, or those it describes."""
    if "construct" not in step:
        return step.hex("bytes")
    out = bytearray()
    for piece in step.text("construct").split(" then "):
        length = re.fullmatch(r"VLQ\(([0-9]{1,9})\)", piece)
        repeated = re.fullmatch(r"((?:[0-9a-f]{2})+)(?: repeated ([0-9]{1,9}) times)?", piece)
        if length is not None:
            out += encode_length(int(length[1]))
        elif repeated is not None:
            data, count = bytes.fromhex(repeated[1]), int(repeated[2] or 1)
            # A changed step must not fill the memory.
            if len(data) * count > CONSTRUCTED_MAX:
                raise Mismatch(f"construct: at most {CONSTRUCTED_MAX} bytes, got {shown(piece)}")
            out += data * count
        else:
            raise Mismatch(f"construct: VLQ(n), hex, or hex repeated n times; got {shown(piece)}")
    return bytes(out)


def pings_in(payload: bytes) -> Iterator[bytes]:
    """Yield the id of a PING that is sent."""
    try:
        message, _ = decode_payload(payload)
    except PeerError:
        return  # transcripts send malformed frames on purpose
    if isinstance(message, Ping):
        yield encode(message.id)


# --- what must be equal -------------------------------------------------------------------------


def compare_frame(step: Fields, payload: bytes) -> None:
    """Raise `Mismatch` unless a frame has the recorded top cell and set of children."""
    # "the same top cell and the same set of children" (docs/conformance.md "Node transcripts")
    top, children = _structure(_recorded(step))
    own_top, own_children = _structure(payload)
    expect("top cell", top.hex(), own_top.hex())
    # As a set: "It reads them in any order" (docs/cells.md "Messages").
    expect("children", sorted(h.hex() for h in children), sorted(h.hex() for h in own_children))


def compare_volatile(step: Fields, payload: bytes, pings: set[bytes]) -> None:
    """Raise `Mismatch` unless a Result equals the recorded one, except in `volatile` slots."""
    # "a Result that is equal but for the slots listed, whose error is one of `allow`"
    # (docs/conformance.md "Node transcripts")
    recorded, own = result_in(_recorded(step)), result_in(payload)
    free: set[str] = set()
    allowed: set[str] = set()
    for entry in _volatile(step):
        free.add(entry.text("field"))
        allowed |= {as_text(word, "allow") for word in as_list(entry.get("allow", []), "allow")}
    wanted, got = _slots(recorded), _slots(own)
    for slot in SLOTS:
        if slot not in free:
            expect(f"{slot} of the Result", _named(wanted[slot]), _named(got[slot]))
    # A slot that may differ is still bounded: an error by its names, a PING's result by its type.
    if "error" in free and allowed and _error_name(own) not in allowed:
        raise Mismatch(f"error: one of {sorted(allowed)} is needed, got {_error_name(own)}")
    if "result" in free and encode(own.id) in pings and type(own.value) is not int:
        raise Mismatch(f"the result of a PING is a clock, got {shown(own.value)}")


def compare_ours(ours: Fields, payload: bytes) -> None:
    """Raise `Mismatch` unless a Result has the slots that the vector gives for our node."""
    own = result_in(payload)
    if "id" in ours:
        ours.expect("id", encode(own.id))
    if "error" in ours:
        ours.expect("error", _error_name(own))
    if "value" in ours:
        ours.expect("value", encode(own.value))
    if "value_hash" in ours:
        expect("hash of the value", ours.hex("value_hash"), value_hash(own.value))


def compare_state(wanted: Fields, live: bytes, announced: bytes) -> None:
    """Raise `Mismatch` unless a node's two values have these hashes."""
    expect("live value", wanted.hex("root_hash"), live)
    expect("announced value", wanted.hex("announced_hash"), announced)


def result_in(payload: bytes) -> Result:
    """Return the Result that a frame carries."""
    message, _ = decode_payload(payload)
    if not isinstance(message, Result):
        raise Mismatch(f"a Result is needed, got {shown(payload)}")
    return message


def _recorded(step: Fields) -> bytes:
    """Return the payload of the recorded frame, which must be one frame and nothing else."""
    buffer = FrameBuffer()
    buffer.feed(step.hex("bytes"))
    payload = buffer.next_payload()
    if payload is None or buffer.is_partial:
        raise Mismatch(f"one whole frame is needed, got {shown(step['bytes'])}")
    return payload


def _structure(payload: bytes) -> tuple[bytes, frozenset[bytes]]:
    value, parts = decode_parts(payload)
    return encode(value), frozenset(parts.encodings())


def _slots(result: Result) -> dict[str, Value]:
    named = (result.id, result.value, result.error, result.log, result.info)
    return dict(zip(SLOTS, named, strict=True))


def _named(value: Value) -> str:
    return f"{value_hash(value).hex()} ({shown(value)})"


def _error_name(result: Result) -> str | None:
    return None if result.error is None else result.error.name
