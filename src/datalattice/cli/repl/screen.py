"""Screen: the prompt on a terminal, with completion and a history that is kept in the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output
from prompt_toolkit.patch_stdout import patch_stdout

from datalattice.cli.render import print_notice
from datalattice.cli.repl.completing import Candidates
from datalattice.cli.repl.evaluator import Evaluator, Quit

HISTORY_BYTES_MAX: Final = 1 << 20
"""Longest history that is kept; of a longer one the last half of this is kept."""


class KeptHistory(FileHistory):
    """Typed lines, in a file that only its owner can read; `keeps` chooses the lines to store."""

    def __init__(self, path: Path, keeps: Callable[[str], bool]) -> None:
        self._keeps: Final = keeps
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(handle, 0o600)  # the mode of `open` does not apply to an existing file
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        if size > HISTORY_BYTES_MAX:
            # The file is cut where an entry begins: after an empty line.
            kept = path.read_bytes()[-HISTORY_BYTES_MAX // 2 :]
            path.write_bytes(kept[max(kept.find(b"\n\n"), 0) :])
        super().__init__(path)

    def store_string(self, string: str) -> None:
        """Store a line unless `keeps` says no."""
        if self._keeps(string):
            super().store_string(string)


class _PromptCompleter(Completer):
    def __init__(self, candidates: Candidates) -> None:
        self._candidates: Final = candidates

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        word, found = self._candidates.of(document.text_before_cursor)
        for one in found:
            yield Completion(one.text, -len(word), display_meta=one.about)


class Screen:
    """A prompt on a terminal. history: the file of typed lines; None: they are kept in memory."""

    def __init__(
        self,
        evaluator: Evaluator,
        candidates: Candidates,
        history: Path | None,
        *,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._evaluator: Final = evaluator
        self._input, self._output = input, output
        kept: History = (
            InMemoryHistory() if history is None else KeptHistory(history, evaluator.keeps)
        )
        self._session: Final[PromptSession[str]] = PromptSession(
            history=kept,
            completer=_PromptCompleter(candidates),
            # In a thread: candidates come from the node, and a slow node must not delay typing.
            complete_in_thread=True,
            input=input,
            output=output,
        )

    def run(self) -> None:
        """Read and run commands until Ctrl-D or `quit`."""
        is_ended = False
        # Streams print to the same output as the prompt.
        with create_app_session(self._input, self._output):
            while not is_ended:
                try:
                    is_ended = self._turn()
                except KeyboardInterrupt:  # "Ctrl-C stops the running command only"
                    print_notice("interrupted")

    def _turn(self) -> bool:
        """Read and run a command; return whether it was the last."""
        try:
            text = self._ask()
        except KeyboardInterrupt:
            return False  # the line is dropped
        except EOFError:
            return True
        try:
            self._evaluator.run(text)
        except Quit:
            return True
        except Exception as error:  # noqa: BLE001 - the prompt goes on after any error
            self._evaluator.failed(error, "")
        return False

    def _ask(self) -> str:
        """Return the typed line; meanwhile streams print above it."""
        # The lock is held so that no stream is printing while the output is replaced.
        patch: Any = patch_stdout(raw=True)
        with self._evaluator.printing:
            patch.__enter__()
        try:
            return self._session.prompt(self._evaluator.prompt)
        finally:
            with self._evaluator.printing:
                patch.__exit__(None, None, None)
