"""Owners: their local names, and the owner that a text stands for.

`DIR/names.json` is an object of local names and public keys: `{"north": "3f2a..."}`. The names are
for the user of this folder; peers never see them. The command line uses `read_names`, `name_owner`,
`forget_name` and `resolve_owner`; a `Node` uses the same.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping
from typing import Final

from datalattice.actions import OWN_NAME
from datalattice.apps import Owner
from datalattice.apps.grid import GRID_SECTION
from datalattice.cells import Index, Keyword, Map, Value
from datalattice.client.folder import Folder
from datalattice.crypto import PUBLIC_KEY_BYTES
from datalattice.errors import Corruption, UsageError
from datalattice.lattice import OwnerLattice, get_in, is_public_key, public_key_of, root_lattice
from datalattice.store import RealDisk, replace_file, write_error

ALL: Final = "all"
"""The text for all owners, in commands that read several."""

_PREFIX_DIGITS_MIN: Final = 4  # fewer digits are often shared by two owners
"""Fewest hex digits that name an owner."""

_SHORT_DIGITS: Final = 8
"""Fewest hex digits of a printed owner without a local name; more if these are not unique."""

_NAME_CHARS_MAX: Final = 64

_HEX: Final = frozenset(string.hexdigits)
_VENUES: Final = (GRID_SECTION, Keyword("venues"))


# --- local names -----------------------------------------------------------------------------


def read_names(folder: Folder) -> dict[str, bytes]:
    """Return the local names of owners in a folder with their public keys.

    Raises: Corruption: the file of the names is damaged.
    """
    try:
        text = folder.names_path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{folder.names_path} cannot be read: {error.strerror}") from error
    try:
        names = {name: bytes.fromhex(key) for name, key in json.loads(text).items()}
    # Ignoring damaged names could make a name mean another owner.
    except (ValueError, AttributeError, TypeError) as error:
        raise Corruption(
            f"{folder.names_path} is not an object of names and keys in hex; correct or remove it"
        ) from error
    # Other lengths are not keys, and no name may stand for them.
    return {name: key for name, key in names.items() if len(key) == PUBLIC_KEY_BYTES}


def name_owner(folder: Folder, name: str, key: bytes) -> None:
    """Give an owner a local name, durably; it is taken from any other owner.

    Raises: UsageError: `name` cannot be a local name, or `key` is not a public key.
    """
    if not is_public_key(key):
        raise UsageError(f"an owner's key has {PUBLIC_KEY_BYTES} bytes, got {len(key)}")
    _write_names(folder, read_names(folder) | {checked_owner_name(name): bytes(key)})


def forget_name(folder: Folder, name: str) -> bool:
    """Remove a local name, durably; return whether there was one."""
    names = read_names(folder)
    if names.pop(name, None) is None:
        return False
    _write_names(folder, names)
    return True


def checked_owner_name(name: str) -> str:
    """Return `name` if it can be a local name. Raises: UsageError: it cannot."""
    # "A local name has a character that is no hex digit" (docs/design/front-door.md "Handles"), so
    # it is never read as part of a key.
    is_word = 0 < len(name) <= _NAME_CHARS_MAX and name.isprintable() and not set(name) & set(" /:")
    if not is_word or set(name) <= _HEX or name.startswith("0x") or name in (OWN_NAME, ALL):
        raise UsageError(
            f"a local name has 1 to {_NAME_CHARS_MAX} printable characters, at least one of them "
            f"not a hex digit, no space, / or :, and is not {OWN_NAME!r} or {ALL!r}; got {name!r}"
        )
    return name


def _write_names(folder: Folder, names: Mapping[str, bytes]) -> None:
    text = json.dumps({name: key.hex() for name, key in sorted(names.items())}, indent=1)
    try:
        RealDisk().create_folder(str(folder.path))
    except OSError as error:
        raise write_error(error, str(folder.path)) from error
    # Replaced in one step: a crash leaves the old names or the new ones.
    replace_file(RealDisk(), str(folder.names_path), [f"{text}\n".encode()])


# --- owners of a root, and owners by text ---------------------------------------------------


def owners_in(root: Value) -> list[Value]:
    """Return the owners that have data in a root: public keys and DIDs, in order."""
    if not isinstance(root, Index):
        return []
    lattice = root_lattice()
    held: list[Value] = [get_in(root, _VENUES)]  # venues are one level deeper than owners
    held += [value for key, value in root.entries() if isinstance(lattice.child(key), OwnerLattice)]
    found: dict[Value, None] = {}
    for section in held:
        if isinstance(section, (Map, Index)):
            found.update((key, None) for key, _ in section.entries())
    # Public keys first, then DIDs.
    return sorted(found, key=lambda key: (not isinstance(key, bytes), str(key)))


def section_owners(root: Value, section: Keyword) -> list[bytes]:
    """Return the public keys of the owners with data in a section, in order."""
    held = get_in(root, [section])
    keys = held.keys() if isinstance(held, Map) else ()
    return sorted(key for key in keys if isinstance(key, bytes))


def resolve_owner(
    given: object, *, own: bytes | None, names: Mapping[str, bytes], owners: Iterable[Value]
) -> Value:
    """Return the owner cell that `given` stands for.

    given:  an `Owner`, a public key (32 bytes or 64 hex digits), a unique prefix of 4 or more hex
            digits, a local name, a DID, or "own".
    own, names, owners: the default owner, the local names, and the owners whose keys a prefix may
            begin.
    Raises: UsageError: `given` has another form, or is a prefix of no owner or of several, which
            the text names.
    """
    if isinstance(given, Owner):
        return given.key
    if isinstance(given, (bytes, bytearray)) and is_public_key(bytes(given)):
        return bytes(given)
    if not isinstance(given, str):
        raise _not_an_owner(given)
    # Names before keys: no local name can be read as a key, so it hides none.
    if given == OWN_NAME and own is not None:
        return own
    if given in names:
        return names[given]
    if given.startswith("did:"):
        return public_key_of(given) or given  # a did:key is its key
    digits = given.removeprefix("0x").lower()
    if not digits or not set(digits) <= _HEX:
        raise _not_an_owner(given)
    if len(digits) == 2 * PUBLIC_KEY_BYTES:
        return bytes.fromhex(digits)
    # Each owner once, whether known by name, by data or as the default.
    known = dict.fromkeys([*names.values(), *owners, *([own] if own else [])])
    found = [key for key in known if isinstance(key, bytes) and key.hex().startswith(digits)]
    # "An ambiguous prefix raises `UsageError` with the candidates" (docs/design/front-door.md
    # "Handles").
    if len(digits) < _PREFIX_DIGITS_MIN or len(found) != 1:
        raise _ambiguous(given, digits, found)
    return found[0]


def owner_of(key: Value, *, names: Mapping[str, bytes], owners: Iterable[Value]) -> Owner:
    """Return an owner that prints as its local name, else as its shortest unique digits."""
    for name, named in names.items():
        if named == key:
            return Owner(key, name)
    if not isinstance(key, bytes):
        return Owner(key)
    digits = key.hex()
    others = [other.hex() for other in owners if isinstance(other, bytes) and other != key]
    length = _SHORT_DIGITS
    # "`Owner` prints as its local name, else 8 hex digits or as many as are unique."
    # (docs/design/front-door.md "Handles")
    while any(other.startswith(digits[:length]) for other in others):
        length += 1
    return Owner(key, digits[:length])


def _not_an_owner(given: object) -> UsageError:
    return UsageError(
        "an owner is a public key (32 bytes or 64 hex digits), a unique prefix of "
        f"{_PREFIX_DIGITS_MIN} or more digits, a local name, a DID or {OWN_NAME!r}; got {given!r}"
    )


def _ambiguous(given: str, digits: str, found: list[bytes]) -> UsageError:
    if len(digits) < _PREFIX_DIGITS_MIN:
        return UsageError(
            f"give at least {_PREFIX_DIGITS_MIN} hex digits of an owner, got {given!r}"
        )
    if not found:
        return UsageError(f"no owner known here has a key that begins with {given!r}")
    # At least 4 digits more than given, to choose from.
    candidates = ", ".join(sorted(key.hex()[: max(16, len(digits) + 4)] for key in found))
    return UsageError(f"{len(found)} owners have a key that begins with {given!r}: {candidates}")
