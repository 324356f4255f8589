"""Children: forks of this process for tests, whose result or error comes back.

assert in_child(lambda: list(log)) == ["a"]
"""

from __future__ import annotations

import os
import pickle
import select
import signal
from collections.abc import Callable
from typing import Any, Final

from datalattice.errors import DataLatticeError
from datalattice.testing.polling import LIMIT_S

CHILD_S: Final = LIMIT_S
"""Longest time that a child may take; one that waits for a lock of its parent never ends."""


class ChildFailed(Exception):
    """The work of a child raised an error; the text has its class."""


def in_child(work: Callable[[], Any]) -> Any:
    """Fork, do `work` in the child, and return its result here. The child runs no exit handlers.

    Raises: as the function that `begin_child` returns.
    """
    return begin_child(work)()


def begin_child(work: Callable[[], Any]) -> Callable[[], Any]:
    """Fork, begin `work` in the child, and return a function that waits for its result.

    It raises: DataLatticeError: what `work` raised, as the same class. ChildFailed: another error.
               AssertionError: the child did not end in `CHILD_S`, or ended without an answer.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        answer: tuple[bool, Any] = False, "the child was interrupted"
        try:
            answer = True, work()
        except DataLatticeError as error:
            answer = False, error
        except BaseException as error:  # noqa: BLE001 - raised in the parent
            answer = False, f"{type(error).__name__}: {error}"
        finally:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
    os.close(writer)
    return lambda: _result(child, reader)


def _result(child: int, reader: int) -> Any:
    # The pipe, not the child's end, is waited for: it has a time limit.
    data = b""
    while is_done := bool(select.select([reader], [], [], CHILD_S)[0]):
        if not (more := os.read(reader, 1 << 16)):
            break
        data += more
    os.close(reader)
    if not is_done:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert is_done, f"the child did not end in {CHILD_S:g} s"
    assert data, f"the child ended without an answer, with status {status}"
    is_right, found = pickle.loads(data)  # noqa: S301 - of our own child
    if is_right:
        return found
    raise found if isinstance(found, DataLatticeError) else ChildFailed(found)
