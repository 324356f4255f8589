"""OS errors: ours as those that programs expect of a file system."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from datalattice.errors import (
    AlreadyExists,
    DataLatticeError,
    DirectoryNotEmpty,
    IsADirectory,
    NoSigningKey,
    NoSuchPath,
    NotADirectory,
    ReadOnly,
    StoreFull,
)

_CODES: Final[tuple[tuple[type[DataLatticeError], int], ...]] = (
    (NotADirectory, errno.ENOTDIR),
    (NoSuchPath, errno.ENOENT),
    (AlreadyExists, errno.EEXIST),
    (IsADirectory, errno.EISDIR),
    (DirectoryNotEmpty, errno.ENOTEMPTY),
    (ReadOnly, errno.EROFS),
    (NoSigningKey, errno.EACCES),
    (StoreFull, errno.ENOSPC),
)


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Raise OSError, of the class that its code has, for errors that have a code; others as is."""
    try:
        yield
    except DataLatticeError as error:
        for kind, code in _CODES:
            if isinstance(error, kind):
                raise OSError(code, str(error), path) from error
        raise
