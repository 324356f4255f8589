"""Model of `offline.py`: the journals of offline writers, replayed in the order of time.

The product merges by joins of states. The model has the rules as users of a database and a drive
understand them: every write happens at its stamp, a delete hides all older writes, and a write of
another kind begins a new value. It shares no code with the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Visible = tuple[str, Any] | None


@dataclass(frozen=True, slots=True, order=True)
class Write:
    """One acknowledged write: when, by which process, what."""

    stamp: int
    process: int
    operation: str
    place: str
    arguments: tuple[Any, ...] = ()


@dataclass(slots=True)
class Slot:
    """The value of one key while its writes are replayed."""

    kind: str = "none"
    content: Any = None
    removed: set[Any] = field(default_factory=set)


_STRUCTURES = {
    "hset": "hash",
    "hdel": "hash",
    "sadd": "set",
    "srem": "set",
    "zadd": "zset",
    "zrem": "zset",
    "incr": "counter",
}


def replay_keys(writes: list[Write]) -> dict[str, Visible]:
    """Return what each key shows after all writes: (kind, content), None when nothing."""
    slots: dict[str, Slot] = {}
    for write in sorted(writes):
        slot = slots.setdefault(write.place, Slot())
        kind = _STRUCTURES.get(write.operation)
        if kind is None:
            slot.kind = {"set": "value", "list": "list", "del": "none"}[write.operation]
            slot.content = write.arguments[0] if write.arguments else None
            continue
        if slot.kind != kind:
            slot.kind, slot.content = kind, 0 if kind == "counter" else {}
        if kind == "counter":
            slot.content += write.arguments[0]
        elif write.operation in ("hdel", "srem", "zrem"):
            slot.content.pop(write.arguments[0], None)
        else:
            member, *value = write.arguments
            slot.content[member] = value[0] if value else True
    return {key: _shown(slot) for key, slot in slots.items()}


def _shown(slot: Slot) -> Visible:
    if slot.kind == "none" or (slot.kind in ("hash", "set", "zset") and not slot.content):
        return None
    return slot.kind, slot.content


Tree = dict[str, Any]
"""A directory: names to contents of files (text) or to further trees."""


def replay_tree(writes: list[Write]) -> Tree:
    """Return the drive after all writes."""
    root: Tree = {}
    for write in sorted(writes):
        *above, name = write.place.strip("/").split("/")
        parent = root
        for step in above:
            below = parent.get(step)
            if not isinstance(below, dict):
                below = parent[step] = {}
            parent = below
        if write.operation == "mkdir":
            if not isinstance(parent.get(name), dict):
                parent[name] = {}
        elif write.operation == "write":
            parent[name] = write.arguments[0]
        else:
            parent.pop(name, None)
    return root
