"""The position of a stream of changes: a root, and the time at which expiry was judged.

The time is part of the position, so a batch that Spark runs again has the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from datalattice.errors import UsageError
from datalattice.limits import HASH_BYTES

POSITION_VERSION: Final = 1
"""Version of the checkpointed form of a position."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The root that was read last; None: before the first root.

    Units:  time_ms: Unix milliseconds.
    """

    root_hash: bytes | None
    time_ms: int

    def write(self) -> dict[str, object]:
        """Return the form that Spark keeps as JSON."""
        root = None if self.root_hash is None else "0x" + self.root_hash.hex()
        return {"version": POSITION_VERSION, "root": root, "time": self.time_ms}

    @classmethod
    def read(cls, form: Mapping[str, object]) -> Self:
        """Return the position in a checkpoint.

        Raises: UsageError: the checkpoint is of another version or another source.
        """
        root, time_ms = form.get("root"), form.get("time")
        if form.get("version") == POSITION_VERSION and isinstance(time_ms, int):
            if root is None:
                return cls(None, time_ms)
            found = _hash(root)
            if found is not None:
                return cls(found, time_ms)
        raise UsageError(
            f"the checkpoint holds no position of this source (version {POSITION_VERSION}): "
            f"{json.dumps(dict(form))[:200]}; use another checkpointLocation"
        )


def _hash(root: object) -> bytes | None:
    if not isinstance(root, str) or not root.startswith("0x"):
        return None
    try:
        found = bytes.fromhex(root[2:])
    except ValueError:
        return None
    return found if len(found) == HASH_BYTES else None
