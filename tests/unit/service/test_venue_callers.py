"""Callers of a venue: as whom a job is seen that was begun by one without a credential."""

from __future__ import annotations

import pytest
from tests.unit.service.cases import ONE, World

from datalattice.actions import GetJob, InvokeOperation, ListJobIds
from datalattice.errors import Unauthenticated, Unauthorized
from datalattice.service.access import ANONYMOUS, Principal

ALICE = Principal("did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", "token")


def test_a_caller_without_a_credential_is_the_public_one() -> None:
    world = World()
    try:
        call = world.service.call
        asked = InvokeOperation(operation="v/ops/echo/back", input=ONE, wait_ms=60_000)
        with pytest.raises(Unauthenticated):
            call(asked, ANONYMOUS)
        world.access.policies.put("venue/jobs/anybody", {"r": ["public"], "x": ["public"]})
        public = call(asked, ANONYMOUS)
        assert public.caller == f"{world.venue.runner.did}:public"
        assert public.status == "COMPLETE"
        # All who show nothing are one caller, and those who show something are another.
        assert call(GetJob(id=public.id), ANONYMOUS) == public
        assert call(ListJobIds(), ANONYMOUS).jobs == (public.id,)
        mine = call(asked, ALICE)
        assert mine.caller == ALICE.did
        for caller, other in ((ANONYMOUS, mine), (ALICE, public)):
            with pytest.raises(Unauthorized):
                call(GetJob(id=other.id), caller)
    finally:
        world.close()
