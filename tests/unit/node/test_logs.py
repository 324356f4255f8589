"""Logs: one line a record whatever is in it, stable names and fields, repetitions counted."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable

import pytest

from datalattice.node.logs import (
    REPEAT_S,
    REPEATED_MAX,
    REPEATS_MAX,
    Repeats,
    log_event,
    logging_to,
    set_level,
)
from datalattice.node.observe import Observer
from datalattice.sync import Note

HOSTILE = 'a "b"\nc\x1b[31m\u2028 d=e'


def logged(format: str, work: Callable[[], object], level: str = "info") -> list[str]:
    stream = io.StringIO()
    with logging_to(stream, level, format):
        work()
    return stream.getvalue().splitlines()


def hostile_event() -> None:
    log_event(
        logging.INFO, "connected", peer=HOSTILE, key=b"\xab\xcd", count=3, well=True, gone=None
    )


def test_a_json_line_has_time_level_event_and_fields() -> None:
    (line,) = logged("json", hostile_event)
    assert line.startswith('{"time": ')
    document = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document.pop("time"))
    assert document == {
        "level": "info",
        "event": "connected",
        "peer": HOSTILE,
        "key": "abcd",
        "count": 3,
        "well": True,
    }


def test_a_text_line_quotes_what_is_not_one_word() -> None:
    (line,) = logged("text", hostile_event)
    when, level, rest = line.split(" ", 2)
    assert when.endswith("Z")
    assert level == "info"
    assert rest == f"connected peer={json.dumps(HOSTILE)} key=abcd count=3 well=true"


@pytest.mark.parametrize("format", ["text", "json"])
def test_records_of_others_and_tracebacks_are_one_line_too(format: str) -> None:
    def work() -> None:
        logger = logging.getLogger("datalattice.anything")
        try:
            int("x\ny")
        except ValueError:
            logger.exception("it %s\nfailed", "all")

    (line,) = logged(format, work)
    assert "message" in line
    assert "Traceback" in line
    if format == "json":
        document = json.loads(line)
        assert document["text"] == "it all\nfailed"
        assert document["logger"] == "datalattice.anything"


def test_what_is_less_grave_than_the_level_is_left_out_and_the_level_can_change() -> None:
    def work() -> None:
        log_event(logging.INFO, "one")
        log_event(logging.WARNING, "two")
        set_level("debug")
        log_event(logging.DEBUG, "three")

    lines = logged("text", work, "warning")
    assert [line.split()[2] for line in lines] == ["two", "three"]


def test_logging_is_left_as_it_was() -> None:
    logger = logging.getLogger("datalattice")
    before = (logger.level, logger.propagate, list(logger.handlers))
    logged("text", hostile_event)
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_repetition_is_logged_a_few_times_and_then_as_a_count() -> None:
    time = Time()
    repeats = Repeats(time)
    seen = [repeats.admit("refused", "p") for _ in range(REPEATS_MAX + 3)]
    assert seen == [0] * REPEATS_MAX + [None] * 3
    assert repeats.admit("refused", "q") == 0
    assert repeats.admit("malformed", "p") == 0
    time.now = REPEAT_S - 0.1
    assert repeats.admit("refused", "p") is None
    time.now = REPEAT_S
    assert repeats.admit("refused", "p") == 4
    assert repeats.admit("refused", "p") == 0


def test_kinds_and_peers_that_are_told_apart_are_bounded() -> None:
    time = Time()
    repeats = Repeats(time)
    for number in range(REPEATED_MAX):
        assert repeats.admit("refused", str(number)) == 0
    more = [repeats.admit("refused", f"more {number}") for number in range(10 * REPEATED_MAX)]
    assert more.count(0) == REPEATS_MAX
    assert len(repeats._counts) <= REPEATED_MAX + 1
    time.now = 2 * REPEAT_S
    assert repeats.admit("refused", "new") == 0
    assert len(repeats._counts) <= 2


def test_a_peer_that_comes_back_from_other_ports_is_one_peer() -> None:
    observer = Observer(Time())

    def work() -> None:
        for number in range(100):
            peer = f"in 10.0.0.1:{40_000 + number} #{number}"
            observer.note(Note("malformed", peer, "no message"))

    assert len(logged("json", work)) == REPEATS_MAX
    assert observer.counters == {"malformed": 100}
