"""Memory: the greatest memory use of the demo's processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
MIB: Final = 1_024


def peak_memory_mib(names: Mapping[int, str]) -> dict[str, int]:
    """Return the greatest resident size so far of this process and all below it, in MiB.

    Processes are named by `names` or by their program; the greatest of one name counts. Empty on
    systems other than Linux, which do not report it.
    """
    found: dict[str, int] = {}
    for pid in _family(os.getpid()):
        name, peak = names.get(pid), _peak_kib(pid)
        if peak is None:
            continue
        if name is None:
            name = "demo" if pid == os.getpid() else _program(pid)
        found[name] = max(found.get(name, 0), peak // MIB)
    return found


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        # The kernel lists children by the thread that started them.
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return  # the process has ended, or the system has no /proc
    for task in tasks:
        try:
            children = (task / "children").read_text("ascii").split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _peak_kib(pid: int) -> int | None:
    try:
        status = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return None
    for line in status.splitlines():
        # The peak, which the kernel keeps: looking seldom misses none.
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return None


def _program(pid: int) -> str:
    try:
        name = (_PROC / str(pid) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "other"
    # The nodes are in `names`; all other Python processes below the demo are Spark's.
    return "spark worker" if name.startswith("python") else name
