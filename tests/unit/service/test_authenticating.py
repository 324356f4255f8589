"""Who a caller is: the matrix of credentials, against other implementations both ways."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import http_message_signatures as hms
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, strategies as st
from jwt.algorithms import OKPAlgorithm

from datalattice.client.credentials import (
    ALGORITHMS,
    CREDENTIAL_CHARACTERS_MAX,
    ID_CHARACTERS_MAX,
    content_digest,
    digest_in,
    encode_part,
    make_token,
    multikey_of,
    sign_request,
    split_token,
)
from datalattice.client.credentials.forms import BRACKETS_MAX
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import MemoryEngine
from datalattice.errors import BadFormat, RateLimited, UsageError
from datalattice.lattice import did_of
from datalattice.service.access import (
    ANONYMOUS,
    BAD_CREDENTIAL,
    SPENT_TABLE,
    Allowance,
    Authenticator,
    BadCredential,
    Credentials,
    Grant,
    Origin,
    Principal,
    RateLimits,
    SpentIds,
    check_body,
)
from datalattice.service.access.authenticating import AUDIENCES_MAX, TOKENS_MAX
from datalattice.testing.callers import (
    ALICE,
    ALICE_DID,
    BOB,
    BOB_DID,
    CALL_TARGET,
    NODE,
    NODE_DID,
    NOW_MS,
    NOW_S,
    URL,
    authenticator,
    bearer,
    chosen_token,
    raw_token,
    signed_call,
    signed_token,
    token_of,
)

BODY = hashlib.sha256(b"a body").digest()


def claims(**changed: Any) -> str:
    return chosen_token(changed)


def header(**changed: Any) -> str:
    return chosen_token(None, changed)


def cut(text: str, part: int, change: Callable[[str], str]) -> str:
    parts = text.split(".")
    parts[part] = change(parts[part])
    return ".".join(parts)


# A second `exp` would be refused as such.
ENDLESS = ',"nbf":1e999}'

BAD_TOKENS: dict[str, tuple[str, str]] = {
    "empty": ("", "malformed"),
    "no dots": ("abc", "malformed"),
    "two parts": ("a.b", "malformed"),
    "four parts": (f"{token_of()}.x", "malformed"),
    "no signature": (cut(token_of(), 2, lambda _: ""), "malformed"),
    "short signature": (cut(token_of(), 2, lambda one: one[:-2]), "malformed"),
    "padded": (f"{token_of()}==", "malformed"),
    "stray bits": (cut(token_of(), 2, lambda one: one[:-1] + "B"), "malformed"),
    "not JSON": (raw_token("{", "{}"), "malformed"),
    "no object": (raw_token("[]", "{}"), "malformed"),
    "not UTF-8": (cut(token_of(), 1, lambda _: encode_part(b"\xff")), "malformed"),
    "a member twice": (raw_token('{"alg":"none","alg":"EdDSA"}', "{}"), "malformed"),
    "NaN": (raw_token('{"alg":"EdDSA"}', '{"exp":NaN}'), "malformed"),
    "a number of a megabit": (raw_token('{"alg":"EdDSA"}', '{"exp":' + "9" * 5_000 + "}"), "malf"),
    "deep": (raw_token('{"alg":"EdDSA"}', '{"a":' + "[" * 2_500 + "]" * 2_500 + "}"), "malformed"),
    "signed by another key": (chosen_token(key=BOB), "signature"),
    "other claims": (cut(token_of(), 1, lambda _: token_of(BOB).split(".")[1]), "key"),
    "a flipped bit": (cut(token_of(), 2, lambda _: "A" * 86), "signature"),
    "alg none": (header(alg="none"), "algorithm"),
    "no alg": (signed_token({"typ": "JWT"}, {"iss": ALICE_DID}), "algorithm"),
    "alg HS256": (header(alg="HS256"), "algorithm"),
    "alg ES256": (header(alg="ES256"), "algorithm"),
    "alg of another case": (header(alg="eddsa"), "algorithm"),
    "alg no text": (header(alg=["EdDSA"]), "algorithm"),
    "critical": (header(crit=["exp"]), "critical"),
    "another type": (header(typ="dpop+jwt"), "type"),
    "kid of another key": (header(kid=multikey_of(BOB.public_key)), "key"),
    "kid no text": (header(kid={"a": 1}), "key"),
    "no issuer": (chosen_token(without="iss"), "key"),
    "an issuer of another method": (claims(iss="did:web:example.org"), "key"),
    "an issuer no text": (claims(iss=7), "key"),
    "no subject": (chosen_token(without="sub"), "subject"),
    "for somebody else": (claims(sub=BOB_DID), "subject"),
    "by the node for no DID": (chosen_token({"iss": NODE_DID, "sub": "bob"}, key=NODE), "subject"),
    "no audience": (chosen_token(without="aud"), "audience"),
    "another audience": (claims(aud=BOB_DID), "audience"),
    "part of a URL": (claims(aud="https://node.example"), "audience"),
    "more than a URL": (claims(aud=f"{URL}.evil.example"), "audience"),
    "audiences no texts": (claims(aud=[NODE_DID, 1]), "audience"),
    "many audiences": (claims(aud=[NODE_DID] * (AUDIENCES_MAX + 1)), "audience"),
    "no end": (chosen_token(without="exp"), "time"),
    "no beginning": (chosen_token(without="iat"), "time"),
    "end no number": (claims(exp="later"), "time"),
    "end a truth": (claims(exp=True), "time"),
    "end before 1970": (claims(exp=-1), "time"),
    "end beyond 64 bits": (claims(exp=2**63), "time"),
    "begins at infinity": (
        raw_token('{"alg":"EdDSA"}', json.dumps(split_token(chosen_token()).claims)[:-1] + ENDLESS),
        "time",
    ),
    "lives too long": (claims(exp=NOW_S + 3_601), "life"),
    "ends as it begins": (claims(exp=NOW_S), "life"),
    "expired": (claims(iat=NOW_S - 660, exp=NOW_S - 60), "expired"),
    "issued in the future": (claims(iat=NOW_S + 61, exp=NOW_S + 600), "not-yet-valid"),
    "not before": (claims(nbf=NOW_S + 61), "not-yet-valid"),
    "no id": (chosen_token(without="jti"), "token-id"),
    "an empty id": (claims(jti=""), "token-id"),
    "a long id": (claims(jti="x" * (ID_CHARACTERS_MAX + 1)), "token-id"),
    "an id with a line end": (claims(jti="a\nb"), "token-id"),
    "scopes no list": (claims(scopes="r values"), "scopes"),
    "scopes no texts": (claims(scopes=[1]), "scopes"),
    "an unknown scope": (claims(scopes=["r values", "r other"]), "scopes"),
    "an unknown right": (claims(scopes=["z values"]), "scopes"),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_bad_token_is_refused_with_one_text(name: str) -> None:
    token, reason = BAD_TOKENS[name]
    with pytest.raises(BadCredential) as caught:
        authenticator().authenticate(bearer(token), NOW_MS)
    assert str(caught.value) == BAD_CREDENTIAL
    assert caught.value.reason.startswith(reason)
    assert caught.value.__cause__ is None
    assert token == "" or token not in caught.value.reason


@pytest.mark.parametrize("value", ["Basic abc", "bearer", "", "Token x", "\ud800"])
def test_another_scheme_is_refused(value: str) -> None:
    with pytest.raises(BadCredential):
        authenticator().authenticate(Credentials(headers={"authorization": value}), NOW_MS)


GOOD_TOKENS: dict[str, str] = {
    "as a client makes it": token_of(),
    "for a URL": token_of(audience=URL),
    "for a URL with a slash": token_of(audience=f"{URL}/"),
    "for several": claims(aud=["did:web:other.example", NODE_DID]),
    "the new name of the algorithm": header(alg="Ed25519"),
    "kid the DID": header(kid=ALICE_DID),
    "kid the key's URL": header(kid=f"{ALICE_DID}#{multikey_of(ALICE.public_key)}"),
    "an hour": claims(exp=NOW_S + 3_600),
    "times with a fraction": claims(iat=NOW_S - 0.5, exp=NOW_S + 0.25),
    "just expired": claims(iat=NOW_S - 600, exp=NOW_S - 59),
    "issued just in the future": claims(iat=NOW_S + 60),
    "the longest id": claims(jti="x" * ID_CHARACTERS_MAX),
    "other members": chosen_token({"name": "Alice", "deep": [[1]]}, {"x": 1}),
}


@pytest.mark.parametrize("name", GOOD_TOKENS)
def test_a_good_token_is_its_issuer(name: str) -> None:
    found = authenticator().authenticate(bearer(GOOD_TOKENS[name]), NOW_MS)
    assert (found.did, found.how, found.key_id, found.scopes) == (
        ALICE_DID, "token", ALICE_DID, None,
    )  # fmt: skip


def test_the_node_vouches_for_others() -> None:
    token = make_token(NODE, NODE_DID, NOW_MS, subject="did:web:bob.example", scopes=["r values"])
    found = authenticator().authenticate(bearer(token), NOW_MS)
    assert found == Principal(
        "did:web:bob.example", "token", (Grant("r", "values"),), NOW_MS + 660_000, NODE_DID
    )


def test_no_credential_is_nobody_or_whom_the_door_knows() -> None:
    tell = authenticator()
    assert tell.authenticate(Credentials("GET", CALL_TARGET), NOW_MS) == ANONYMOUS
    for local in ("process", "socket"):
        found = tell.authenticate(Credentials(local=local), NOW_MS)
        assert found == Principal(NODE_DID, local)


def test_a_credential_counts_on_a_socket_too() -> None:
    tell = authenticator()
    asked = replace(bearer(token_of()), local="socket")
    assert tell.authenticate(asked, NOW_MS).did == ALICE_DID
    with pytest.raises(BadCredential):
        tell.authenticate(replace(bearer("a.b.c"), local="socket"), NOW_MS)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {token_of()}", "Signature-Input": "sig=()"},
        {"authorization": f"Bearer {token_of()}", "Signature": "sig=:AA==:"},
        {"authorization": f"Bearer {token_of()}, Bearer {token_of(BOB)}"},
        {"authorization": f"Bearer {token_of()}", "Authorization": f"Bearer {token_of()}"},
    ],
)
def test_several_credentials_are_a_wrong_call(headers: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="one credential") as caught:
        authenticator().authenticate(Credentials("GET", CALL_TARGET, headers), NOW_MS)
    assert token_of() not in str(caught.value)


@pytest.mark.parametrize(
    "query", ["access_token=x", "Access_Token=", "authorization=Bearer", f"q={token_of()}",
              "a=1&t=%65" + token_of()[1:]],
)  # fmt: skip
def test_a_token_in_the_query_is_a_wrong_call(query: str) -> None:
    with pytest.raises(UsageError, match="query") as caught:
        authenticator().authenticate(Credentials("GET", f"{URL}/x?{query}"), NOW_MS)
    assert token_of()[1:] not in str(caught.value)


def test_a_name_with_dots_in_the_query_is_none() -> None:
    asked = Credentials("GET", f"{URL}/x?host=a.b.example")
    assert authenticator().authenticate(asked, NOW_MS) == ANONYMOUS


def test_a_header_is_bounded() -> None:
    base = len(chosen_token({"x": ""}))
    room = (CREDENTIAL_CHARACTERS_MAX - base) * 3 // 4
    sizes = {
        len(token): token
        for token in (chosen_token({"x": "y" * n}) for n in range(room - 3, room + 6))
    }
    fits = max(size for size in sizes if size <= CREDENTIAL_CHARACTERS_MAX)
    above = min(size for size in sizes if size > CREDENTIAL_CHARACTERS_MAX)
    assert fits >= CREDENTIAL_CHARACTERS_MAX - 1
    assert authenticator().authenticate(bearer(sizes[fits]), NOW_MS).did == ALICE_DID
    with pytest.raises(BadCredential) as caught:
        authenticator().authenticate(bearer(sizes[above]), NOW_MS)
    assert (
        caught.value.reason
        == f"malformed: a token has at most {CREDENTIAL_CHARACTERS_MAX} characters"
    )


def tell_reason(tell: Authenticator, asked: Credentials) -> str:
    with pytest.raises(BadCredential) as caught:
        tell.authenticate(asked, NOW_MS)
    return caught.value.reason


def reason_of(asked: Credentials) -> str:
    return tell_reason(authenticator(), asked)


def test_the_headers_of_a_signature_are_bounded() -> None:
    """At the limit another check refuses them, above it their length."""
    text = signed_call().headers["signature-input"]
    key = "x" * (CREDENTIAL_CHARACTERS_MAX - len(text) + len(ALICE_DID))
    at_limit = text.replace(ALICE_DID, key)
    assert len(at_limit) == CREDENTIAL_CHARACTERS_MAX
    long = f"malformed: a header has at most {CREDENTIAL_CHARACTERS_MAX} characters"
    assert reason_of(changed(signed_call(), signature_input=at_limit)) == "key"
    assert (
        reason_of(changed(signed_call(), signature_input=text.replace(ALICE_DID, f"{key}x")))
        == long
    )
    assert reason_of(changed(signed_call(), signature="s" * CREDENTIAL_CHARACTERS_MAX)) != long
    assert (
        reason_of(changed(signed_call(), signature="s" * (CREDENTIAL_CHARACTERS_MAX + 1))) == long
    )


def test_the_header_of_a_digest_is_bounded() -> None:
    ours = content_digest(BODY)
    more = f"{ours}, a="
    size = (CREDENTIAL_CHARACTERS_MAX - len(more) - 2) // 4 * 4
    spaces = " " * (CREDENTIAL_CHARACTERS_MAX - len(more) - 2 - size)
    longest = f"{more}:{'A' * size}:{spaces}"
    assert len(longest) == CREDENTIAL_CHARACTERS_MAX
    assert digest_in(longest) == BODY
    with pytest.raises(BadFormat, match="at most"):
        digest_in(f"{longest} ")


@pytest.mark.parametrize(
    "header",
    ["", "sha-512=:AAAA:", "sha-256=:AAAA:", "sha-256=AAAA", f"{content_digest(BODY)},",
     f"{content_digest(BODY)}, {content_digest(b'x' * 32)}"],
)  # fmt: skip
def test_a_digest_is_one_of_sha_256(header: str) -> None:
    with pytest.raises(BadFormat, match="Content-Digest"):
        digest_in(header)


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> str:
        deep: object = 1
        for _ in range(levels - 1):  # and the object itself
            deep = [deep]
        return chosen_token({"x": deep})

    assert authenticator().authenticate(bearer(nested(BRACKETS_MAX)), NOW_MS).did == ALICE_DID
    with pytest.raises(BadCredential, match=BAD_CREDENTIAL):
        authenticator().authenticate(bearer(nested(BRACKETS_MAX + 1)), NOW_MS)


# --- tokens that are known ----------------------------------------------------------------------


def test_a_known_token_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tell, token = authenticator(), token_of()
    first = tell.authenticate(bearer(token), NOW_MS)
    monkeypatch.setattr("datalattice.service.access.reading.verify_strict", lambda *_: 1 / 0)
    assert tell.authenticate(bearer(token), NOW_MS + 1) == first
    with pytest.raises(ZeroDivisionError):
        tell.authenticate(bearer(token_of(BOB)), NOW_MS)


def test_a_known_token_ends_when_it_ends() -> None:
    tell, token = authenticator(), token_of(life_s=10)
    last = NOW_MS + 70_000 - 1
    assert tell.authenticate(bearer(token), NOW_MS).expires_ms == last + 1
    tell.authenticate(bearer(token), last).check_live(last)
    with pytest.raises(BadCredential):
        tell.authenticate(bearer(token), last + 1)
    with pytest.raises(BadCredential) as caught:
        tell.authenticate(bearer(token), NOW_MS).check_live(last + 1)
    assert caught.value.reason == "expired"


def test_a_known_token_is_checked_anew_when_the_clock_is_set_back() -> None:
    tell, token = authenticator(), token_of()
    tell.authenticate(bearer(token), NOW_MS)
    with pytest.raises(BadCredential):
        tell.authenticate(bearer(token), NOW_MS - 61_000)


def test_known_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOKENS_MAX == 10_000
    monkeypatch.setattr("datalattice.service.access.authenticating.TOKENS_MAX", 2)
    tell = authenticator()
    tokens = [token_of(life_s=number) for number in (10, 20, 30)]
    for token in (tokens[0], tokens[1], tokens[0], tokens[2]):
        tell.authenticate(bearer(token), NOW_MS)
    monkeypatch.setattr("datalattice.service.access.reading.verify_strict", lambda *_: 1 / 0)
    tell.authenticate(bearer(tokens[0]), NOW_MS)
    tell.authenticate(bearer(tokens[2]), NOW_MS)
    with pytest.raises(ZeroDivisionError):
        tell.authenticate(bearer(tokens[1]), NOW_MS)  # unused for longest


def test_a_revoked_token_is_refused_whether_known_or_not() -> None:
    engine = MemoryEngine([SPENT_TABLE])
    tell = Authenticator(NODE_DID, [URL], SpentIds(engine))
    token, other = claims(jti="gone"), claims(jti="other")
    for one in (token, other):
        tell.authenticate(bearer(one), NOW_MS)
    tell.revoke(ALICE_DID, "gone", NOW_MS + 660_000, NOW_MS)
    tell.authenticate(bearer(other), NOW_MS)
    restarted = Authenticator(NODE_DID, [URL], SpentIds(engine))
    for later in (tell, restarted):
        with pytest.raises(BadCredential) as caught:
            later.authenticate(bearer(token), NOW_MS)
        assert caught.value.reason == "revoked"
    same_id = chosen_token({"iss": BOB_DID, "sub": BOB_DID, "jti": "gone"}, key=BOB)
    assert restarted.authenticate(bearer(same_id), NOW_MS).did == BOB_DID


def test_a_token_that_is_revoked_while_it_is_verified_is_not_known() -> None:
    class Revoking(SpentIds):
        def is_revoked(self, did: str, token_id: str) -> bool:
            found = super().is_revoked(did, token_id)
            if not found:  # another thread, right after this one has looked
                tell.revoke(did, token_id, NOW_MS + 660_000, NOW_MS)
            return found

    tell = Authenticator(NODE_DID, [URL], Revoking(MemoryEngine([SPENT_TABLE])))
    tell.authenticate(bearer(token_of()), NOW_MS)
    assert tell_reason(tell, bearer(token_of())) == "revoked"


# --- signed requests ----------------------------------------------------------------------------


def changed(asked: Credentials, **headers: str) -> Credentials:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return replace(asked, headers={**asked.headers, **named})


def with_input(change: Callable[[str], str], **settings: Any) -> Credentials:
    asked = signed_call(**settings)
    return changed(asked, signature_input=change(asked.headers["signature-input"]))


GOOD_REQUESTS: dict[str, Credentials] = {
    "without a body": signed_call(),
    "with a body": signed_call(method="PUT", body_sha256=BODY),
    "of an empty body": signed_call(method="PUT", body_sha256=hashlib.sha256().digest()),
    "a method in small letters": replace(signed_call(), method="get"),
    "a minute old": signed_call(now_ms=NOW_MS - 60_000),
    "a minute early": signed_call(now_ms=NOW_MS + 60_000),
}


@pytest.mark.parametrize("name", GOOD_REQUESTS)
def test_a_signed_request_is_its_signer(name: str) -> None:
    found = authenticator().authenticate(GOOD_REQUESTS[name], NOW_MS)
    assert (found.did, found.how, found.key_id) == (ALICE_DID, "signature", ALICE_DID)
    found.check_live(NOW_MS)


BAD_REQUESTS: dict[str, tuple[Credentials, str]] = {
    "no signature": (Credentials("GET", CALL_TARGET, {"signature-input": "sig=()"}), "malformed"),
    "no input": (Credentials("GET", CALL_TARGET, {"signature": "sig=:AA==:"}), "malformed"),
    "another method": (replace(signed_call(), method="PUT"), "signature"),
    "another path": (replace(signed_call(), url=f"{URL}/api/v1/root"), "signature"),
    "another query": (replace(signed_call(), url=f"{CALL_TARGET}&pin=1"), "signature"),
    "another service": (signed_call(url="https://other.example/x"), "target"),
    "a host that begins alike": (signed_call(url=f"{URL}0/x"), "target"),
    "no URL": (replace(signed_call(), url=""), "target"),
    "a body that is not signed": (replace(signed_call(), body_sha256=BODY), "components"),
    "a later body that is not signed": (replace(signed_call(), is_unread=True), "components"),
    "another body": (replace(signed_call(body_sha256=BODY), body_sha256=b"x" * 32), "digest"),
    "no body where one was signed": (
        replace(signed_call(body_sha256=BODY), body_sha256=None),
        "digest",
    ),
    "another digest": (
        changed(signed_call(body_sha256=BODY), content_digest="sha-256=:AA==:"),
        "sign",
    ),
    "no digest": (
        replace(
            signed_call(body_sha256=BODY),
            headers={
                name: value
                for name, value in signed_call(body_sha256=BODY).headers.items()
                if name != "content-digest"
            },
        ),
        "malformed",
    ),
    "old": (signed_call(now_ms=NOW_MS - 61_000), "expired"),
    "early": (signed_call(now_ms=NOW_MS + 61_000), "not-yet-valid"),
    "expired": (with_input(lambda one: f"{one};expires={NOW_S - 1}"), "expired"),
    "a later expiry that is not signed": (
        with_input(lambda one: f"{one};expires={NOW_S + 9}"),
        "sign",
    ),
    "another time": (with_input(lambda one: one.replace(str(NOW_S), str(NOW_S + 1))), "signature"),
    "another key": (with_input(lambda one: one.replace(ALICE_DID, BOB_DID)), "signature"),
    "a key that is no DID": (with_input(lambda one: one.replace(ALICE_DID, "alice")), "key"),
    "another algorithm": (
        with_input(lambda one: one.replace("ed25519", "hmac-sha256")),
        "malformed",
    ),
    "an unknown parameter": (with_input(lambda one: f'{one};tag="x"'), "malformed"),
    "a parameter twice": (with_input(lambda one: f"{one};created={NOW_S}"), "malformed"),
    "no nonce": (with_input(lambda one: one.replace(";nonce=", ";xnonce=")), "malformed"),
    "an empty nonce": (
        with_input(lambda one: one.partition(";nonce=")[0] + ';nonce=""'),
        "malformed",
    ),
    "a long nonce": (
        with_input(lambda one: one.partition(";nonce=")[0] + f';nonce="{"x" * 129}"'),
        "malformed",
    ),
    "created no number": (with_input(lambda one: one.replace(str(NOW_S), '"now"')), "malformed"),
    "a component twice": (
        with_input(lambda one: one.replace('"@method"', '"@method" "@method"')),
        "malf",
    ),
    "another component": (with_input(lambda one: one.replace('"@method"', '"date"')), "malformed"),
    "a component left out": (with_input(lambda one: one.replace('"@method" ', "")), "components"),
    "no components": (with_input(lambda one: "sig=()" + one.partition(")")[2]), "components"),
    "two labels": (with_input(lambda one: f"{one}, b=()"), "malformed"),
    "another label": (changed(signed_call(), signature=f"b=:{'A' * 86}==:"), "malformed"),
    "a short signature": (changed(signed_call(), signature="sig=:AAAA:"), "malformed"),
    "a signature with stray bits": (
        changed(signed_call(), signature=f"sig=:{'A' * 85}B==:"),
        "malformed",
    ),
    "a signature of zeros": (changed(signed_call(), signature=f"sig=:{'A' * 86}==:"), "signature"),
    "a long header": (with_input(lambda one: one + " " * CREDENTIAL_CHARACTERS_MAX), "malformed"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_signed_request_is_refused_with_one_text(name: str) -> None:
    asked, reason = BAD_REQUESTS[name]
    with pytest.raises(BadCredential) as caught:
        authenticator().authenticate(asked, NOW_MS)
    assert str(caught.value) == BAD_CREDENTIAL
    assert caught.value.reason.startswith(reason)


def test_a_signed_request_passes_once_and_a_restart_does_not_forget_it() -> None:
    engine = MemoryEngine([SPENT_TABLE])
    Authenticator(NODE_DID, [URL], SpentIds(engine)).authenticate(signed_call(), NOW_MS)
    for _ in range(2):
        tell = Authenticator(NODE_DID, [URL], SpentIds(engine))
        with pytest.raises(BadCredential) as caught:
            tell.authenticate(signed_call(), NOW_MS + 60_000)
        assert caught.value.reason == "replayed"
    tell.authenticate(signed_call(seed=2), NOW_MS)
    assert (
        tell.authenticate(signed_call(BOB), NOW_MS).did == BOB_DID
    )  # the same nonce of another key


def test_a_request_that_is_refused_spends_no_nonce() -> None:
    tell = authenticator()
    for asked in (
        replace(signed_call(body_sha256=BODY), body_sha256=b"x" * 32),
        with_input(str.upper),
    ):
        with pytest.raises(BadCredential):
            tell.authenticate(asked, NOW_MS)
    assert tell.authenticate(signed_call(body_sha256=BODY), NOW_MS).did == ALICE_DID


def test_a_later_body_is_checked_at_its_end() -> None:
    asked = replace(signed_call(body_sha256=BODY), body_sha256=None, is_unread=True)
    assert authenticator().authenticate(asked, NOW_MS).did == ALICE_DID
    check_body(asked, BODY)
    with pytest.raises(BadCredential) as caught:
        check_body(asked, b"x" * 32)
    assert caught.value.reason == "digest"
    check_body(bearer(token_of()), b"x" * 32)  # a token says nothing of a body


def test_no_url_means_no_signed_requests() -> None:
    tell = Authenticator(NODE_DID, [], SpentIds(MemoryEngine([SPENT_TABLE])))
    assert tell.authenticate(bearer(token_of()), NOW_MS).did == ALICE_DID
    for url in (CALL_TARGET, "", "/api"):
        with pytest.raises(BadCredential):
            tell.authenticate(signed_call(url=url), NOW_MS)


# --- failures -----------------------------------------------------------------------------------


def test_failures_are_counted_by_address_and_a_known_token_still_passes() -> None:
    tell = authenticator(RateLimits({"failures": Allowance(1, 2)}))
    here, there = Origin("rest", 1, "192.0.2.1"), Origin("rest", 2, "192.0.2.2")
    good = replace(bearer(token_of()), origin=here)
    tell.authenticate(good, NOW_MS)
    for _ in range(2):
        with pytest.raises(BadCredential):
            tell.authenticate(replace(bearer("x"), origin=here), NOW_MS)
    for asked in (bearer("x"), bearer(token_of(BOB)), signed_call()):
        with pytest.raises(RateLimited) as caught:
            tell.authenticate(replace(asked, origin=here), NOW_MS)
        assert caught.value.retry_s == 1
    assert tell.authenticate(good, NOW_MS).did == ALICE_DID
    assert tell.authenticate(replace(signed_call(), origin=there), NOW_MS).did == ALICE_DID
    assert tell.authenticate(replace(signed_call(BOB), origin=here), NOW_MS + 1_000).did == BOB_DID


# --- other implementations ----------------------------------------------------------------------


def private(key: KeyPair) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(key.seed)


def test_pyjwt_reads_our_tokens() -> None:
    token = token_of(scopes=["r values"])
    found = jwt.decode(
        token,
        private(ALICE).public_key(),
        algorithms=["EdDSA"],
        audience=NODE_DID,
        issuer=ALICE_DID,
        options={"require": ["exp", "iat", "jti", "sub"], "verify_exp": False, "verify_iat": False},
    )
    assert found["scopes"] == ["r values"]
    assert found["exp"] - found["iat"] == 600
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(token, private(BOB).public_key(), algorithms=["EdDSA"], audience=NODE_DID)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_we_read_the_tokens_of_pyjwt(algorithm: str) -> None:
    body = split_token(chosen_token()).claims
    signer = jwt.PyJWT()
    with contextlib.suppress(ValueError):  # it may know the new name one day
        signer._jws.register_algorithm("Ed25519", OKPAlgorithm())
    token = signer.encode(body, private(ALICE), algorithm=algorithm)
    assert authenticator().authenticate(bearer(token), NOW_MS).did == ALICE_DID
    other = signer.encode(body, private(BOB), algorithm=algorithm)
    with pytest.raises(BadCredential):
        authenticator().authenticate(bearer(other), NOW_MS)


@pytest.mark.parametrize("algorithm", ["HS256", "none"])
def test_tokens_of_pyjwt_with_other_algorithms_are_refused(algorithm: str) -> None:
    key: Any = None if algorithm == "none" else ALICE.public_key
    token = jwt.encode(split_token(chosen_token()).claims, key, algorithm=algorithm)
    with pytest.raises(BadCredential):
        authenticator().authenticate(bearer(token), NOW_MS)


class Request:
    def __init__(self, method: str, url: str, headers: dict[str, str]) -> None:
        self.method, self.url, self.headers = method, url, dict(headers)


class Keys(hms.HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> Any:
        return private({ALICE_DID: ALICE, BOB_DID: BOB}[key_id]).public_key()

    def resolve_private_key(self, key_id: str) -> Any:
        return private({ALICE_DID: ALICE, BOB_DID: BOB}[key_id])


def their_headers(method: str, url: str, body: bytes | None, key_id: str) -> dict[str, str]:
    request = Request(method, url, {})
    signer = hms.HTTPMessageSigner(signature_algorithm=hms.algorithms.ED25519, key_resolver=Keys())
    signer.sign(
        request,
        key_id=key_id,
        created=datetime.fromtimestamp(NOW_S, UTC),
        nonce="their nonce",
        covered_component_ids=("@method", "@target-uri"),
        body=body,
    )
    return request.headers


@pytest.mark.parametrize("body", [None, b"", b"a body"])
def test_we_read_requests_that_another_library_signed(body: bytes | None) -> None:
    headers = their_headers("POST", CALL_TARGET, body, ALICE_DID)
    digest = None if body is None else hashlib.sha256(body).digest()
    asked = Credentials("POST", CALL_TARGET, headers, digest)
    assert authenticator().authenticate(asked, NOW_MS).did == ALICE_DID
    for other in (replace(asked, method="PUT"), replace(asked, url=f"{CALL_TARGET}1")):
        with pytest.raises(BadCredential) as caught:
            authenticator().authenticate(other, NOW_MS)
        assert caught.value.reason == "signature"


@pytest.mark.parametrize("body", [None, b"", b"a body"])
def test_another_library_reads_our_signed_requests(body: bytes | None) -> None:
    digest = None if body is None else hashlib.sha256(body).digest()
    now_ms = round(datetime.now(UTC).timestamp() * 1_000)
    headers = sign_request(ALICE, "post", CALL_TARGET, now_ms, body_sha256=digest)
    verifier = hms.HTTPMessageVerifier(
        signature_algorithm=hms.algorithms.ED25519, key_resolver=Keys()
    )
    needed = ("@method", "@target-uri") + (() if body is None else ("content-digest",))
    request = Request("POST", CALL_TARGET, headers)
    (found,) = verifier.verify(request, require_components=needed, body=body)
    assert found.parameters["keyid"] == ALICE_DID
    with pytest.raises(hms.InvalidSignature):
        verifier.verify(Request("PUT", CALL_TARGET, headers))


# --- making -------------------------------------------------------------------------------------


def test_a_token_lives_an_hour_at_most() -> None:
    for life_s in (1, 3_600):
        found = authenticator().authenticate(bearer(token_of(life_s=life_s)), NOW_MS)
        assert found.expires_ms == NOW_MS + life_s * 1_000 + 60_000
    for life_s in (0, 3_601):
        with pytest.raises(UsageError, match="lives 1 to 3600"):
            token_of(life_s=life_s)


def test_two_tokens_differ() -> None:
    assert make_token(ALICE, NODE_DID, NOW_MS) != make_token(ALICE, NODE_DID, NOW_MS)


@pytest.mark.parametrize("url", [f"{URL}/a b\n", f"{URL}/\u00e9"])
def test_a_url_that_cannot_be_sent_is_not_signed(url: str) -> None:
    with pytest.raises(BadFormat, match="@target-uri"):
        sign_request(ALICE, "GET", url, NOW_MS, entropy=SeededEntropy(1))


@given(st.text(max_size=40), st.text(max_size=200), st.text(max_size=200), st.text(max_size=99))
def test_any_headers_end_in_one_of_three_ways(
    authorization: str, signature_input: str, signature: str, digest: str
) -> None:
    tell = authenticator()
    for headers in (
        {"authorization": authorization},
        {"authorization": f"Bearer {authorization}"},
        {"signature-input": signature_input, "signature": signature, "content-digest": digest},
    ):
        with pytest.raises((BadCredential, UsageError)):
            tell.authenticate(Credentials("GET", CALL_TARGET, headers, BODY), NOW_MS)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
                    lambda inner: st.lists(inner, max_size=3)),
       st.sampled_from(["iss", "sub", "aud", "iat", "exp", "nbf", "jti", "scopes"]))  # fmt: skip
def test_any_claim_is_taken_or_refused(value: object, name: str) -> None:
    try:
        token = signed_token({"alg": "EdDSA"}, {**split_token(chosen_token()).claims, name: value})
    except ValueError:
        return
    try:
        found = authenticator().authenticate(bearer(token), NOW_MS)
    except BadCredential:
        return
    assert found.did == ALICE_DID == did_of(ALICE.public_key)
    assert json.loads(json.dumps(value)) == value
