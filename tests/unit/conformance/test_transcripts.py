"""Recorded conversations are played against a live node; a changed digit does not pass."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from datalattice.conformance import Mismatch, node_player, run_file
from datalattice.conformance.checks import Fields
from datalattice.conformance.registry import find_format
from datalattice.conformance.transcripts import bytes_of

VECTORS = Path(__file__).parents[2] / "vectors"
FILES = sorted(path.name for path in VECTORS.glob("node-*.json"))
NOT_RUN = {"broadcast-set", "broadcast-root", "broadcast-with-key"}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is known sooner here: the subject is that what comes is compared."""
    monkeypatch.setattr(node_player, "_SILENCE_MS", 40)


def document_of(name: str) -> Any:
    return json.loads((VECTORS / name).read_text("utf-8"), object_hook=Fields)


def transcript_of(file: str, name: str) -> Any:
    return next(one for one in document_of(file)["transcripts"] if one["name"] == name)


@pytest.mark.parametrize("name", FILES)
def test_our_node_takes_its_part_in_every_conversation(name: str) -> None:
    report = run_file(VECTORS / name)
    told = [one for one in document_of(name)["transcripts"] if one["name"] not in NOT_RUN]
    assert (report.failures, report.passed, report.skipped) == ((), len(told), 0)


def test_conversations_that_are_not_to_be_run_are_not_counted() -> None:
    cases = list(
        find_format(document_of("node-two-nodes.json")).cases(document_of("node-two-nodes.json"))
    )
    assert NOT_RUN.isdisjoint(case.id for case in cases)
    assert len(cases) == 7


def flipped(text: str, position: int) -> str:
    digit = "0" if text[position] != "0" else "1"
    return text[:position] + digit + text[position + 1 :]


def compared(transcript: Any) -> list[tuple[int, tuple[str, ...]]]:
    """Return the places whose every digit is compared."""
    found: list[tuple[int, tuple[str, ...]]] = []
    for number, step in enumerate(transcript["steps"]):
        expected = step.get("expect")
        if expected == "differ":
            found += [
                (number, ("ours", field))
                for field in ("id", "value", "value_hash", "root_hash", "announced_hash")
                if isinstance(step["ours"].get(field), str)
            ]
        elif expected == "match" and step["op"] == "state":
            found += [(number, ("root_hash",)), (number, ("announced_hash",))]
        elif expected == "match" and "bytes" in step:
            found.append((number, ("bytes",)))
    return found


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("node-ping.json", "ping-ids"),
        ("node-query.json", "query-map"),
        ("node-data-request.json", "data-request"),
        ("node-two-nodes.json", "pull-set"),
        ("node-challenge.json", "challenge-with-key"),
    ],
)
def test_a_changed_digit_of_what_is_compared_fails(
    file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_player, "_ANSWER_S", 0.2)
    original = transcript_of(file, name)
    places = compared(original)
    assert places
    for number, path in places[:6]:
        changed = copy.deepcopy(original)
        holder = changed["steps"][number]
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = flipped(holder[path[-1]], len(holder[path[-1]]) - 1)
        with pytest.raises(Exception):  # noqa: B017 - however it fails, it fails
            node_player.play(changed)


def changed_ping(change: str) -> Any:
    transcript = transcript_of("node-ping.json", "ping-ids")
    step = next(one for one in transcript["steps"] if one.get("expect") == "volatile")
    if change == "id":
        step["bytes"] = step["bytes"].replace("dd051101", "dd051102")
    elif change == "error":
        step["bytes"] = step["bytes"][:-6] + "1101" + "0000"
    elif change == "slot":
        step["volatile"][0]["field"] = "value"
    elif change == "field":
        step["unheard"] = 1
    return transcript


@pytest.mark.parametrize("change", ["id", "error", "slot", "field"])
def test_what_is_not_volatile_in_a_volatile_step_is_compared(change: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 - however it fails, it fails
        node_player.play(changed_ping(change))


def test_an_error_must_be_one_of_those_allowed() -> None:
    transcript = transcript_of("node-challenge.json", "challenge-with-key")
    for step in transcript["steps"]:
        for entry in step.get("volatile", ()):
            if "allow" in entry:
                entry["allow"] = ["UNEXPECTED"]
    with pytest.raises(Mismatch, match="error: one of"):
        node_player.play(transcript)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lattice": "heap"}, "unknown lattice"),
        ({"initial": {"w": None}}, "unknown field"),
        ({"key_seed": "00"}, "a key seed is 32 bytes"),
    ],
)
def test_a_node_that_cannot_be_set_up_is_a_failure(change: Any, text: str) -> None:
    transcript = transcript_of("node-ping.json", "ping-ids")
    transcript["node"].update(change)
    with pytest.raises(Exception, match=text):
        node_player.play(transcript)


def test_a_silence_in_which_something_comes_fails() -> None:
    transcript = transcript_of("node-ping.json", "ping-ids")
    step = next(one for one in transcript["steps"] if one["op"] == "recv")
    step.update({"op": "silence", "ms": 10_000, "expect": "match"})
    with pytest.raises(Mismatch, match="nothing should have come"):
        node_player.play(transcript)


def test_a_close_that_does_not_come_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_player, "_ANSWER_S", 0.2)
    transcript = transcript_of("node-ping.json", "ping-ids")
    transcript["steps"] = [{"op": "peer_closed", "expect": "match"}]
    with pytest.raises(Mismatch, match="did not close"):
        node_player.play(transcript)


def test_described_input_is_built_as_told() -> None:
    told = Fields(construct="VLQ(300) then 8001 repeated 3 times then 00")
    assert bytes_of(told).hex() == "822c" + "8001" * 3 + "00"
    for text in ("VLQ(x)", "8", "00 repeated 99999999 times", "nonsense"):
        with pytest.raises(Mismatch, match="construct"):
            bytes_of(Fields(construct=text))


def test_a_run_that_is_neither_is_a_failure(tmp_path: Path) -> None:
    document = document_of("node-ping.json")
    document["transcripts"][0]["run"] = "maybe"
    path = tmp_path / "node.json"
    path.write_text(json.dumps(document))
    (failure,) = run_file(path).failures
    assert "'server' or 'skip'" in failure.reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"op": "receive"}, "step 0: op: one of"),
        ({"expect": "equal"}, "step 0: expect: match, volatile or differ"),
        ({"expect": "differ", "ours": {"op": "wait"}}, "step 0: ours: one of"),
        ({"expect": "differ", "ours": {"op": "recv", "hash": "00"}}, "unknown field 'hash'"),
        ({"expect": "volatile", "volatile": [{"field": "value"}]}, "step 0: volatile: one of"),
        ({"op": "recv", "expect": "match", "bytes": "05dd"}, "one whole frame is needed"),
    ],
)
def test_a_step_of_an_unknown_form_fails_before_anything_is_played(change: Any, text: str) -> None:
    transcript = transcript_of("node-ping.json", "ping-ids")
    transcript["steps"] = [{"op": "state", "root_hash": "", "announced_hash": "", **change}]
    with pytest.raises(Mismatch, match=text):
        node_player.play(transcript)
