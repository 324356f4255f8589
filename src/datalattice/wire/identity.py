"""Identity messages: a challenge, its answer, and the check of that answer.

    asks      [:CH id signed]       signed by the asker:    [token wanted-key context?]
    answers   Result(id, signed)    signed by the answerer: [token asker's-key context?]

The asker chooses a random token, so an old answer proves nothing; the answer names the asker's key,
so an answer to another asker proves nothing either. These are pure functions of bytes and keys: the
conversation decides when to ask and what an answer changes.

Source: docs/protocol.md "Identity".
"""

from __future__ import annotations

from datalattice.cells import Signed, Value, Vector, encode_message, same
from datalattice.crypto import KeyPair
from datalattice.errors import BadSignature, MissingData, ProtocolViolation
from datalattice.wire.lattice import (
    CHALLENGE,
    Challenge,
    ErrorCode,
    Result,
    encode_failure,
    encode_result,
    read_statement,
)


def encode_challenge(
    id: Value, asker: KeyPair, token: Value, wanted: bytes | None, *context: Value
) -> bytes:
    """Return a CHALLENGE, which signs `[token wanted-key context?]`.

    If `wanted` is None, the other side may prove any key.
    Shapes: context: at most one value.
    """
    # [token wanted-key context?]: nil as the wanted key asks "whoever you are".
    signed = Signed.sign(asker, Vector.of((token, wanted, *context)))
    return encode_message(Vector.of((CHALLENGE, id, signed)))


def answer_challenge(challenge: Challenge, own: KeyPair | None) -> bytes:
    """Return the answer to a challenge: signed `[token asker's-key context?]`, or an error.

    The error is `:TRUST` if this node has no key, if the challenge wants another key, or if its
    signature is bad; otherwise `:FORMAT`.
    """
    id, signed = challenge.id, challenge.signed
    if own is None:  # a node without an identity cannot prove anything
        return encode_failure(id, ErrorCode.TRUST, "this node has no key")
    if signed is None:
        return encode_failure(id, ErrorCode.FORMAT, challenge.fault or "not a challenge")
    token, wanted, *context = challenge.terms
    # The challenge was meant for another node.
    if wanted is not None and wanted != own.public_key:
        return encode_failure(id, ErrorCode.TRUST, "the wanted key is not that of this node")
    # Checked last: a signature is the only costly step, and strangers may ask.
    if not signed.verify():
        return encode_failure(id, ErrorCode.TRUST, "the signature of the challenge is not good")
    try:
        # [token asker's-key context?]: it names the asker, so another asker cannot use it.
        proof = Signed.sign(own, Vector.of((token, signed.public_key, *context)))
        return encode_result(Result(id, proof))
    except MissingData:
        # The answer echoes parts of the challenge, so all their cells must be present.
        return encode_failure(id, ErrorCode.FORMAT, "a challenge is complete, with all its cells")


def proved_key(
    answer: Value, asker: bytes, token: Value, wanted: bytes | None, *context: Value
) -> bytes:
    """Return the public key that an answer to this node's challenge proves, after checking it.

    Raises: ProtocolViolation: it answers another challenge, or proves another key than the wanted
            one. BadSignature: it is not signed by the key that it names.
    """
    try:
        signed, terms = read_statement(answer)
    except ProtocolViolation as error:
        raise ProtocolViolation(f"the answer to a challenge is {error}") from error
    # "Signer = wanted key if one was given": a good proof of another key is a failure too.
    if wanted is not None and signed.public_key != wanted:
        raise ProtocolViolation(
            f"the peer has the key {signed.public_key.hex()}, wanted is {wanted.hex()}"
        )
    # "[token asker's-key context?]": an answer to another challenge or asker is a replay.
    if not same(Vector.of(terms), Vector.of((token, asker, *context))):
        raise ProtocolViolation("the answer to a challenge states something else")
    if not signed.verify():
        raise BadSignature("the answer to a challenge is not signed by the key it names")
    return signed.public_key
