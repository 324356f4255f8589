"""Owners: whether what stands under one is what that owner signed, and who may sign for one."""

from __future__ import annotations

import re
from typing import Final

from datalattice.cells import Signed, Value, to_text
from datalattice.crypto import KeyPair, KeyRing
from datalattice.errors import BadSignature
from datalattice.lattice import MergeContext, is_public_key, verify_did

_KEY_TEXT: Final = re.compile(r"0x[0-9a-fA-F]{64}")


def name_text(name: Value) -> str:
    """Return the text of a name: a String as it is, everything else as it prints.

    A public key prints as 0x and hex. A String whose bytes are no text is printed, too: a column
    cannot hold it as it is, and it stays apart from others.
    """
    if isinstance(name, str) and (name.isascii() or _is_text(name)):
        return name
    return to_text(name)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_signed(owner: Value, signed: Signed, what: str) -> None:
    """Check that a value is signed by the owner under whom it stands.

    Whether a key may speak for an owner whose name does not carry it was decided when the value
    came in: that takes documents that are not at hand here.

    what: names what is signed, such as "queues".
    Raises: BadSignature: it is signed by another key, or not at all, or its owner only reads like a
            public key.
    """
    text = name_text(owner)
    is_key = is_public_key(owner)
    if not is_key and (_KEY_TEXT.fullmatch(text) or (_is_did(text) and not isinstance(owner, str))):
        raise BadSignature(f"the {what} of owner {text!r}: it only reads like a public key")
    if is_key:
        is_theirs = owner == signed.public_key
    elif isinstance(owner, str) and _is_did(owner):
        is_theirs = verify_did(owner, signed.public_key)
    else:
        is_theirs = True
    if not (is_theirs and signed.verify()):
        raise BadSignature(f"the {what} of owner {text} are not signed by their key")


def _is_did(text: str) -> bool:
    return text.startswith("did:key:")


def signer_of(keys: KeyRing, owner: Value) -> KeyPair | None:
    """Return the pair that may sign for an owner, or None."""
    return MergeContext(keys=keys, verifier=verify_did).signer(owner)
