"""Signatures of owners: whether an owner signed a value, and which key may sign for an owner.

Source: docs/spark.md "Errors".
"""

from __future__ import annotations

import re
from typing import Final

from datalattice.arrow import name_text
from datalattice.cells import Signed, Value
from datalattice.crypto import KeyPair, KeyRing
from datalattice.errors import BadSignature
from datalattice.lattice import MergeContext, is_public_key, verify_did

_KEY_TEXT: Final = re.compile(r"0x[0-9a-fA-F]{64}")


def check_signed(owner: Value, signed: Signed, what: str) -> None:
    """Check that a value is signed by the owner under whom it is stored.

    If an owner's name does not contain a key, the node has already decided, when it merged the
    value, which keys may sign. The documents for that decision are not available here.

    what: names what is signed, such as "queues".
    Raises: BadSignature: the signature is missing or by another key, or the owner is a String that
            looks like a public key.
    """
    text = name_text(owner)
    is_key = is_public_key(owner)
    # Rows show owners as text, so a String that looks like a key would be taken for that owner.
    if not is_key and (_KEY_TEXT.fullmatch(text) or (_is_did(text) and not isinstance(owner, str))):
        raise BadSignature(f"the {what} of owner {text!r}: a text that looks like a public key")
    # An owner that is a key must have signed with it. A DID names the key. Other owners were
    # checked when their values were merged.
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
    """Return the key pair that may sign for an owner, or None."""
    return MergeContext(keys=keys, verifier=verify_did).signer(owner)
