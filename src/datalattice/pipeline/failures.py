"""Failures: find this package's own error in what Spark makes of it.

An error in a source reaches the user as Spark's exception, with the traceback of another process in
its text. What went wrong stands in one line of it.
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
    """Return the error of this package that a Spark exception tells of, None when it is another."""
    found = _LINE.findall(str(failure))
    if not found:
        return None
    name, text = found[-1]
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, DataLatticeError):
        return None
    if issubclass(kind, MissingData):
        return DataLatticeError(text)  # its text does not hold all hashes
    return kind(text)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Raise the errors that sources of this package meet as what they are, not as Spark's.

        with clear_errors():
            frame.show()

    Raises: DataLatticeError: what the source raised. Everything else passes as it is.
    """
    try:
        yield
    except Exception as failure:
        error = lattice_error(failure)
        if error is None:
            raise
        raise error from failure
