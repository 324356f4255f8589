"""The prompt, fed through a pipe: what is typed, kept, completed and interrupted."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.service.cases import World

pytest.importorskip("prompt_toolkit")

from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from datalattice.actions import OfferRecords
from datalattice.cli.render import use_form
from datalattice.cli.repl.completing import Candidates
from datalattice.cli.repl.evaluator import Evaluator
from datalattice.cli.repl.screen import HISTORY_BYTES_MAX, KeptHistory, Screen
from datalattice.service import LocalClient

Type = Callable[[str], list[str]]

END = "\x04"
INTERRUPT = "\x03"
UP = "\x1b[A"
TAB = "\t"


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def evaluator(world: World, failures: list[str]) -> Iterator[Evaluator]:
    use_form(None)  # a command of an earlier test set another one

    def failed(error: Exception, where: str) -> int:
        failures.append(f"{where}{error}")
        return 2

    made = Evaluator(LocalClient(world.service), failed)
    yield made
    made.close()


@pytest.fixture
def type(evaluator: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Type keys at a prompt that ends with them; return the commands that were run."""

    def type(keys: str) -> list[str]:
        ran: list[str] = []
        run = evaluator.run

        def told(text: str) -> None:
            ran.append(text)
            run(text)

        with monkeypatch.context() as patched, create_pipe_input() as pipe:
            patched.setattr(evaluator, "run", told)
            candidates = Candidates(evaluator, evaluator.client, lambda: ["own"])
            screen = Screen(
                evaluator, candidates, tmp_path / "history", input=pipe, output=DummyOutput()
            )
            pipe.send_text(keys)
            screen.run()
        return ran

    return type


def test_commands_are_done_until_the_end(
    type: Type, capsys: pytest.CaptureFixture[str], failures: list[str]
) -> None:
    assert type(f"queue.range log count=1\rnothing\rkv.get shop tea\r{END}") == [
        "queue.range log count=1",
        "nothing",
        "kv.get shop tea",
    ]
    assert "value  3" in capsys.readouterr().out
    assert len(failures) == 1
    assert failures[0].startswith("there is no command 'nothing'")
    assert type("quit\rkv.get shop tea\r") == ["quit"]


def test_ctrl_c_drops_the_line_and_stops_the_running_command_alone(
    type: Type, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    assert type(f"kv.get sh{INTERRUPT}queue.topics\r{END}") == ["queue.topics"]

    def interrupted(_request: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluator.client, "call", interrupted)
    assert type(f"queue.topics\rhelp\r{END}") == ["queue.topics", "help"]
    assert failures == []


def test_what_was_typed_is_kept_for_our_user_alone(type: Type, tmp_path: Path) -> None:
    type(f"queue.topics\rstores.join hidden-token\rnothing\r{END}")
    path = tmp_path / "history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = path.read_text()
    assert "+queue.topics\n" in kept
    assert "hidden-token" not in kept
    assert "nothing" not in kept
    assert type(f"{UP}\r{END}") == ["queue.topics"]


def test_a_history_is_made_private_and_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "history"
    entry = b"\n# 2026-01-01\n+queue.range log\n"
    for size, is_cut in ((HISTORY_BYTES_MAX, False), (HISTORY_BYTES_MAX + 1, True)):
        path.write_bytes((entry * (size // len(entry) + 1))[-size:])
        path.chmod(0o644)
        history = KeptHistory(path, lambda _: True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (path.stat().st_size <= HISTORY_BYTES_MAX // 2) is is_cut
        assert set(history.load_history_strings()) == {"queue.range log"}


def test_a_key_completes_what_only_one_begins_with(
    evaluator: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = threading.Event()
    ran: list[str] = []
    monkeypatch.setattr(evaluator, "run", ran.append)
    with create_pipe_input() as pipe:
        candidates = Candidates(evaluator, evaluator.client, list)
        screen = Screen(evaluator, candidates, None, input=pipe, output=DummyOutput())
        buffer = screen._session.default_buffer
        buffer.on_completions_changed += lambda _: offered.set()

        def person() -> None:
            pipe.send_text("queue.ran")
            assert offered.wait(60)
            pipe.send_text(f"{TAB} log\r{END}")

        thread = threading.Thread(target=person)
        thread.start()
        screen.run()
        thread.join(60)
    assert ran == ["queue.range log"]
    assert list(tmp_path.iterdir()) == []


def test_a_stream_prints_while_a_command_is_typed(
    evaluator: Evaluator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failures: list[str],
) -> None:
    printed = threading.Event()
    show = evaluator._show

    def told(result: object) -> None:
        show(result)  # type: ignore[arg-type]
        printed.set()

    monkeypatch.setattr(evaluator, "_show", told)
    with create_pipe_input() as pipe:
        candidates = Candidates(evaluator, evaluator.client, list)
        screen = Screen(evaluator, candidates, None, input=pipe, output=DummyOutput())

        buffer = screen._session.default_buffer
        half = threading.Event()
        buffer.on_text_changed += lambda _: half.set() if buffer.text == "queue.ra" else None

        def person() -> None:
            pipe.send_text("queue.follow log start=2\r")
            pipe.send_text("queue.ra")
            assert half.wait(60)
            evaluator.client.call(OfferRecords(topic="log", values=("new",)))
            assert printed.wait(60), failures
            pipe.send_text(f"nge log count=1\r{END}")

        thread = threading.Thread(target=person)
        thread.start()
        screen.run()
        thread.join(60)
    assert printed.is_set()
    assert [job.text for job in evaluator._jobs.values()] == ["queue.follow log start=2"]
    assert "\ta\n" in capsys.readouterr().out
