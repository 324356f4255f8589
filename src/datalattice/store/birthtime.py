"""Birth time: when a file or folder was made, which copying and restoring cannot keep.

An inode's number says little by itself: a folder that is removed and restored often gets the number
of the old one. Python tells the time of birth on macOS; on Linux the C library does (`statx`).

Source: man 2 statx.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

_CURRENT_FOLDER: Final = -100  # AT_FDCWD
_BIRTH_TIME: Final = 0x800  # STATX_BTIME, both in what is asked for and in what was found
_FOUND: Final = struct.Struct("<I")
_TIME: Final = struct.Struct("@qI")
_TIME_OFFSET: Final = 80
_ANSWER_BYTES: Final = 256


def birth_time(path: str) -> str:
    """Return when a file or folder was made, as a word; "" where the system does not tell."""
    made = getattr(Path(path).stat(), "st_birthtime", None)
    return str(made) if made is not None else _from_c_library(path)


def _from_c_library(path: str) -> str:
    try:
        statx = ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return ""
    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    failed = statx(_CURRENT_FOLDER, os.fsencode(path), 0, _BIRTH_TIME, answer)
    (found,) = _FOUND.unpack_from(answer.raw)
    if failed or not found & _BIRTH_TIME:
        return ""
    seconds, nanoseconds = _TIME.unpack_from(answer.raw, _TIME_OFFSET)
    return f"{seconds}.{nanoseconds:09}"
