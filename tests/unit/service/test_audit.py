"""What is recorded, and what never is."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback
from dataclasses import dataclass, replace

import pytest

from datalattice.actions import AuditEntry
from datalattice.crypto import Secret
from datalattice.errors import UsageError
from datalattice.service import answer_to
from datalattice.service.access import (
    RING_RECORDS,
    SPENT_TABLE,
    Audit,
    Authenticator,
    BadCredential,
    Credentials,
    audit_line,
    is_audited,
)
from datalattice.service.access.audit import AUDITED_CHARACTERS_MAX
from datalattice.testing.callers import (
    ALICE_DID,
    NOW_MS,
    URL,
    authenticator,
    bearer,
    chosen_token,
    signed_call,
    token_of,
)

CANARY = "canary-7d1f"
RECORD = AuditEntry(
    NOW_MS, "rest", "queue.offer", 7, ALICE_DID, "token", ALICE_DID, "w", "lattice", True, "owner"
)


def test_a_record_is_one_line_of_json() -> None:
    line = audit_line(replace(RECORD, scope="lattice/a\nb", code="conflict"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time_ms": NOW_MS,
        "door": "rest",
        "action": "queue.offer",
        "request": 7,
        "did": ALICE_DID,
        "how": "token",
        "key_id": ALICE_DID,
        "right": "w",
        "scope": "lattice/a\nb",
        "is_allowed": True,
        "reason": "owner",
        "code": "conflict",
    }


def test_a_record_s_texts_are_bounded() -> None:
    found = json.loads(audit_line(replace(RECORD, scope="x" * 9_999)))
    assert len(found["scope"]) == AUDITED_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("right", "scope", "allowed", "recorded"),
    [
        ("r", "lattice", True, False),
        ("r", "lattice", False, True),
        ("r", "admin", True, True),
        ("r", "admin/peers", True, True),
        ("r", "administration", True, False),
        ("w", "lattice", True, True),
        ("x", "venue", False, True),
        ("a", "admin", True, True),
    ],
)
def test_effects_refusals_and_reads_of_admin_are_recorded(
    right: str, scope: str, allowed: bool, recorded: bool
) -> None:
    assert is_audited(right, scope, is_allowed=allowed) is recorded


def test_the_ring_keeps_the_newest() -> None:
    assert RING_RECORDS == 1_024
    audit = Audit(records_max=3)
    assert audit.ring.after(0) == (0, [])
    for number in range(5):
        audit.add(replace(RECORD, request=number))
    assert [one.request for one in audit.ring.after(0)[1]] == [2, 3, 4]
    assert [one.request for one in audit.ring.after(4)[1]] == [4]
    assert audit.ring.after(5) == audit.ring.after(9) == (5, [])
    assert [one.request for one in audit.ring.after(-1)[1]] == [2, 3, 4]


def test_a_sink_gets_each_record_and_its_failures_are_counted() -> None:
    got: list[int] = []

    def sink(record: AuditEntry) -> None:
        if record.request == 1:
            raise OSError(CANARY)
        got.append(record.request)

    audit = Audit(sink)
    for number in range(3):
        audit.add(replace(RECORD, request=number))
    assert (got, audit.failures, audit.last_failure) == ([0, 2], 1, "OSError")
    assert audit.ring.after(0)[0] == 3


@dataclass(frozen=True)
class Login:
    name: str
    password: Secret


def test_a_secret_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(CANARY)
    login = Login("alice", secret)
    logging.getLogger("t").warning("%s %r %s", secret, secret, login)
    shown = [
        str(secret), repr(secret), f"{secret}", f"{secret:>9}",  "a" + secret,
        secret + "a", "".join(iter([secret])), secret.upper(), secret[:], secret.encode().decode(),
        json.dumps({"password": secret}), json.dumps({secret: 1}), repr(login), repr([secret]),
        repr(ValueError(secret)), str(ValueError(secret)), caplog.text, format(secret, ""),
        secret.replace("*", "x"), " ".join(secret.split()), str(vars(login)),
    ]  # fmt: skip
    assert [text for text in shown if "canary" in text.lower()] == []
    assert "***" in repr(login)
    assert secret.reveal() == CANARY


def test_a_secret_is_a_value() -> None:
    secret = Secret(CANARY)
    assert secret == Secret(CANARY)
    assert secret != Secret("other")
    assert {secret: 1}[Secret(CANARY)] == 1
    assert secret != CANARY
    assert secret != "***"
    assert Secret(secret).reveal() == CANARY
    assert copy.deepcopy(secret) == pickle.loads(pickle.dumps(secret)) == secret
    assert Secret("\ud800") != secret
    assert isinstance(secret, str)
    assert len(secret) == 3


def test_no_part_of_a_credential_is_in_an_error_a_repr_or_a_record() -> None:
    """A canary in each text that a caller can choose."""
    tell: Authenticator = authenticator()
    good = token_of()
    asked = [
        bearer(CANARY),
        bearer(f"{CANARY}.{CANARY}.{CANARY}"),
        bearer(f"{good}{CANARY}"),
        Credentials(headers={"authorization": f"Basic {CANARY}"}),
        Credentials(headers={"authorization": f"Bearer {good}, Bearer {CANARY}"}),
        Credentials("GET", f"{URL}/x?access_token={CANARY}"),
        *[
            bearer(chosen_token({name: CANARY}))
            for name in ("iss", "sub", "aud", "iat", "exp", "scopes")
        ],
        bearer(chosen_token({"scopes": [f"r {CANARY}"]})),
        *[bearer(chosen_token(None, {name: CANARY})) for name in ("alg", "typ", "kid", "crit")],
        *[
            replace(
                signed_call(),
                headers={**signed_call().headers, name: f'sig=("{CANARY}");x="{CANARY}"'},
            )
            for name in ("signature", "signature-input")
        ],
        replace(signed_call(), url=f"{URL}/y?q={CANARY}"),
    ]
    shown = []
    for one in asked:
        with pytest.raises((BadCredential, UsageError)) as caught:
            tell.authenticate(one, NOW_MS)
        error = caught.value
        reason = getattr(error, "reason", "")
        record = replace(RECORD, reason=reason, is_allowed=False, code=answer_to(error).code)
        shown += [repr(one), str(error), repr(error), reason, audit_line(record), repr(record)]
        shown += [answer_to(error).text, "".join(traceback.format_exception(error))]
    assert len(shown) == 8 * len(asked)
    assert [text for text in shown if CANARY in text or good in text] == []
    assert SPENT_TABLE == "spent"
