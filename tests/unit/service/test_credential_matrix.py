"""Every action over REST and gRPC with every kind of credential: who may is what `decide` says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tests.unit.service.cases import GOOD, World

from datalattice.actions import (
    ACTIONS,
    Action,
    ActionKind,
    ActionRequest,
    GetKey,
    KeyWrite,
    WriteKeys,
)
from datalattice.actions.formats import HexFormat
from datalattice.client.credentials import make_delegation
from datalattice.client.rest import RestClient
from datalattice.errors import (
    DataLatticeError,
    FileLocked,
    NoSuchPath,
    Unauthenticated,
    Unauthorized,
    UsageError,
)
from datalattice.lattice import did_of
from datalattice.service import Service
from datalattice.service.access import (
    ANONYMOUS,
    AccessControl,
    Allowance,
    Audit,
    Credentials,
    Policies,
    Policy,
    Principal,
    RateLimits,
    decide,
)
from datalattice.testing.callers import (
    ALICE,
    ALICE_DID,
    BOB,
    BOB_DID,
    NODE,
    NOW_MS,
    NOW_S,
    authenticator,
    bearer,
    chosen_token,
    token_of,
)
from datalattice.testing.clocks import StoppedClock

pytest.importorskip("uvicorn")
pytest.importorskip("grpc_reflection")

MANY = Allowance(10_000, 10_000)

INVALID = {
    "wrong": chosen_token(key=BOB),
    "expired": chosen_token({"iat": NOW_S - 1_000, "exp": NOW_S - 400}),
    "foreign": token_of(audience="https://elsewhere.example"),
    "no token": "x",
}

# Bob is the administrator; Alice is known to nobody.
VALID = {"stranger": token_of(ALICE), "narrower": token_of(BOB, scopes=["r values"])}

Call = Callable[[str | None, ActionRequest[Any]], None]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> AccessControl:
    policies = Policies(tmp_path_factory.mktemp("rules"), Policy(frozenset([BOB_DID])))
    limits = RateLimits({"reads": MANY, "effects": MANY, "failures": MANY})
    return AccessControl(authenticator(), policies, limits, Audit(), StoppedClock(NOW_MS), NODE)


@pytest.fixture(scope="module")
def service(world: World, access: AccessControl) -> Service:
    return Service(world.node, access=access, venue=world.venue)


@pytest.fixture(scope="module", params=["rest", "grpc"])
def connect(request: pytest.FixtureRequest, service: Service, access: AccessControl) -> Any:
    """Return what connects to a door: with a token or None, and with delegations."""
    with ExitStack() as held:
        listen = over_rest if request.param == "rest" else over_grpc
        yield listen(service, access, held)


@pytest.fixture(scope="module")
def call(connect: Any) -> Call:
    """Call an action through a door; what streams gives its first item."""

    def once(token: str | None, asked: ActionRequest[Any]) -> None:
        with connect(token) as client:
            if asked.action.kind is ActionKind.STREAM:
                with client.stream(asked) as stream:
                    next(stream)
            else:
                client.call(asked)

    return once


def over_rest(service: Service, access: AccessControl, held: ExitStack) -> Any:
    import uvicorn

    from datalattice.api.rest import rest_app

    app, door = rest_app(service, access.enter)
    listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(60)
        door.close()

    held.callback(end)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    return lambda token, shown=(): RestClient(
        url, token=token and (lambda: token), delegations=shown
    )


def over_grpc(service: Service, access: AccessControl, held: ExitStack) -> Any:
    from tests.unit.api.serving import serving

    from datalattice.client.grpc import GrpcClient

    def enter(metadata: Mapping[str, str], _address: str | None) -> Principal:
        return access.enter(Credentials(headers=metadata))

    served = held.enter_context(serving(service, authenticate=enter))
    port = served.run(served.door.listen_tcp("127.0.0.1:0"))
    target = f"127.0.0.1:{port}"
    return lambda token, shown=(): GrpcClient(target, token=token, delegations=shown)


@pytest.fixture(scope="module")
def requests(world: World) -> list[ActionRequest[Any]]:
    """Return a request of every action."""
    return [asked(action, world) for action in ACTIONS.values()]


def asked(action: Action, world: World) -> ActionRequest[Any]:
    """Return a request that names what is there, where there is a case of it."""
    with suppress(FileLocked):  # another case holds the same lock
        if action.name in GOOD:
            return GOOD[action.name].make(world)
    given: dict[str, Any] = {}
    for field in action.request.declared():
        size = getattr(field.codec, "_size", None)
        if isinstance(field.codec, HexFormat) and size and not field.repeated:
            given[field.name] = b"\x07" * size
        elif getattr(action.request, field.name, None) == "":
            given[field.name] = "own" if field.name == "owner" else "x"
    return action.request(**given)


@pytest.mark.parametrize("name", INVALID)
def test_a_credential_that_is_not_valid_is_refused_by_every_action(
    name: str, call: Call, requests: list[ActionRequest[Any]]
) -> None:
    for request in requests:
        with pytest.raises(Unauthenticated):
            call(INVALID[name], request)


@pytest.mark.parametrize("name", ["none", *VALID])
def test_a_caller_is_refused_what_the_rules_and_its_credential_do_not_give(
    name: str,
    call: Call,
    world: World,
    service: Service,
    access: AccessControl,
    requests: list[ActionRequest[Any]],
) -> None:
    caller = ANONYMOUS if name == "none" else access.enter(bearer(VALID[name]))
    refused = 0
    for request in requests:
        action = request.action
        if not action.scope:
            continue  # it is open to all, or decides by what it finds
        scope = service._scope(action, request, caller)[0]
        if decide(access.policy(), caller, action.right, scope).is_allowed:
            continue  # the suite of all actions has them
        refused += 1
        expected: tuple[type[DataLatticeError], ...] = (Unauthenticated,)
        if caller.did is not None:  # "a read answers 404", so that nobody learns what is there
            expected = (Unauthorized, NoSuchPath) if action.right == "r" else (Unauthorized,)
        before = world.effects()
        with pytest.raises(expected):
            call(VALID.get(name), request)
        assert world.effects() == before, action.name
    assert refused > len(ACTIONS) // 4


# --- what owners let others do ------------------------------------------------------------------


def test_a_delegate_writes_where_it_was_let_and_nowhere_else(connect: Any, world: World) -> None:
    owner = world.owner_pair
    did, shop = did_of(owner.public_key), f"{did_of(owner.public_key)}/kv/shop"
    given = make_delegation(owner, ALICE_DID, {shop: "crud"}, NOW_MS)
    offered = WriteKeys(database="shop", owner=did, writes=(KeyWrite(key="given", value="tea"),))
    with connect(token_of(ALICE), [given]) as client:
        client.call(offered)
        assert client.call(GetKey(owner=did, database="shop", key="given")).value == "tea"
        with pytest.raises(Unauthorized):
            client.call(WriteKeys(database="other", owner=did, writes=offered.writes))
    for token, shown in ((token_of(ALICE), ()), (token_of(BOB, scopes=["r values"]), ())):
        with connect(token, shown) as client, pytest.raises(Unauthorized):
            client.call(offered)
    # What was given to Alice is of no use to another, whose own token is good.
    with connect(token_of(BOB), [given]) as client, pytest.raises(Unauthenticated):
        client.call(offered)
    with pytest.raises(UsageError, match="delegations: a list"):
        connect(token_of(ALICE), given)
