"""Policy: whose data a node hosts and how much of it, as its settings say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from datalattice.errors import UsageError

SENDERS: Final = ("any", "known", "none")
OWNERS: Final = ("any", "known")

OWNER_BYTES: Final = 1_000_000_000
OWNER_CELLS: Final = 1_000_000
STRANGERS_BYTES: Final = 8_000_000_000
RESERVE_BYTES: Final = 512_000_000
UNSIGNED_BYTES: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class UnsignedPolicy:
    """Of whom the unsigned part of a section is taken: `any`, `known` (wanted peers), `none`.

    strangers_bytes: what peers that are not known may add in all.
    """

    sender: str = "any"
    strangers_bytes: int = UNSIGNED_BYTES

    def __post_init__(self) -> None:
        _check_choice("from", self.sender, SENDERS)
        _check_size("strangers_bytes", self.strangers_bytes)


@dataclass(frozen=True, slots=True)
class HostingPolicy:
    """Whose data is taken. Own keys have no limit.

    sections:        names of the sections that are taken; None: all that are registered.
    owners:          `any`, or `known`: own keys, wanted peers, and `allow`.
    allow, refuse:   owners without limits, and owners whose data is not taken: keys in hex, DIDs.
    owner_bytes, owner_cells: what one owner may have, over all sections; cells in each.
    strangers_bytes: what all owners together may have who are neither own nor allowed.
    reserve_bytes:   free room of the disk below which foreign data is not taken.
    unsigned:        rules for the unsigned part of sections, by name.
    """

    sections: tuple[str, ...] | None = None
    owners: str = "any"
    allow: tuple[str, ...] = ()
    refuse: tuple[str, ...] = ()
    owner_bytes: int = OWNER_BYTES
    owner_cells: int = OWNER_CELLS
    strangers_bytes: int = STRANGERS_BYTES
    reserve_bytes: int = RESERVE_BYTES
    unsigned: Mapping[str, UnsignedPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice("owners", self.owners, OWNERS)
        for name in ("owner_bytes", "owner_cells", "strangers_bytes", "reserve_bytes"):
            _check_size(name, getattr(self, name))

    def unsigned_of(self, section: str) -> UnsignedPolicy:
        """Return the rule for the unsigned part of a section."""
        return self.unsigned.get(section, _UNSIGNED)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(
            f"hosting: {name} is {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}"
        )


def _check_size(name: str, value: int) -> None:
    if value < 0:
        raise UsageError(f"hosting: {name} is at least 0, got {value}")


_UNSIGNED: Final = UnsignedPolicy()
