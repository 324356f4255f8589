"""Recover this package's own error from a Spark exception.

Spark reports an error in a source as its own exception, with the worker's traceback in the text.
The last line of that traceback names the original error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from datalattice import errors
from datalattice.errors import DataLatticeError, MissingData

_LINE: Final = re.compile(r"^datalattice\.errors\.(\w+): (.*)$", re.MULTILINE)


def lattice_error(failure: BaseException) -> DataLatticeError | None:
    """Return the error of this package that a Spark exception reports; None for other errors."""
    # Spark keeps the worker's error as text only, at the end of its traceback.
    found = _LINE.findall(str(failure))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, None)
    # A text that looks like one of our errors must not make any other object.
    if not isinstance(kind, type) or not issubclass(kind, DataLatticeError):
        return None
    if issubclass(kind, MissingData):
        return DataLatticeError(text)  # the text names some hashes only
    return kind(text)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Raise the errors of this package's sources directly instead of as Spark exceptions.

        with clear_errors():
            frame.show()

    Raises: DataLatticeError: the source's error. Other exceptions pass unchanged.
    """
    try:
        yield
    except Exception as failure:
        error = lattice_error(failure)
        if error is None:
            raise
        raise error from failure
