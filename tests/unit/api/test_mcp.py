"""The MCP door: each tool in the protocol, content as text, bounds, resources, bad arguments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.service.cases import BAD, GOOD, Good, World

from datalattice.actions import (
    ACTIONS,
    ActionKind,
    ActionRequest,
    WatchJob,
    from_document,
    to_document,
)
from datalattice.cells import Map
from datalattice.errors import DataLatticeError
from datalattice.service import OPERATOR, Service
from datalattice.service.access import (
    ANONYMOUS,
    AccessControl,
    Allowance,
    Audit,
    Policies,
    Principal,
    RateLimits,
)
from datalattice.testing.callers import NOW_MS, authenticator
from datalattice.testing.clocks import StoppedClock

mcp = pytest.importorskip("mcp")
httpx = pytest.importorskip("httpx")
jsonschema = pytest.importorskip("jsonschema")

from datalattice.api.mcp import (  # noqa: E402 - only where the package is
    RESOURCE_CHARACTERS_MAX,
    RESULT_CHARACTERS_MAX,
    RESULT_DEPTH_MAX,
    McpDoor,
    McpTools,
    mcp_server,
)

TOOLS = [action.name for action in ACTIONS.values() if action.is_tool]
CONTENT = {"drive.read", "drive.write"}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def with_client(
    service: Service,
    use: Callable[[Any], Coroutine[Any, Any, Any]],
    *,
    tools: Any = "all",
    caller: Principal = OPERATOR,
    mode: str = "auto",
) -> Any:
    """Return what `use` returns of a client of the package."""

    async def run() -> Any:
        async with mcp.Client(
            mcp_server(McpTools(service, tools), lambda _: caller), mode=mode
        ) as one:
            return await use(one)

    return asyncio.run(run())


def call(world: World, name: str, **arguments: Any) -> Any:
    return with_client(world.service, lambda client: client.call_tool(name, arguments))


def arguments_of(request: ActionRequest[Any]) -> dict[str, Any]:
    """Return what a model would write for a request."""
    document = to_document(request)
    if request.action.name == "drive.write":
        document["data"] = {"$blob": document["data"]}
    return document


def message_of(name: str, document: dict[str, Any]) -> Any:
    """Return the result that a tool's document stands for."""
    if name == "drive.read":
        text = document["data"]
        document["data"] = text["$blob"] if isinstance(text, dict) else text.encode().hex()
        document.pop("next", None)
    return from_document(ACTIONS[name].result, document)


def kinds_below(kind: type[DataLatticeError]) -> Iterator[str]:
    yield kind.code
    for one in kind.__subclasses__():
        yield from kinds_below(one)


# --- every tool -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("name", TOOLS)
def test_a_good_call_is_answered_as_the_action_is(name: str, mode: str, world: World) -> None:
    case = GOOD[name]
    assert isinstance(case, Good)
    arguments = arguments_of(case.make(world))
    answer = with_client(
        world.service, lambda client: client.call_tool(name.replace(".", "_"), arguments), mode=mode
    )
    assert not answer.is_error, answer
    assert json.loads(answer.content[0].text) == answer.structured_content
    assert case.check(message_of(name, answer.structured_content), world), answer


@pytest.mark.parametrize("name", TOOLS)
def test_a_bad_call_is_a_tool_error_with_the_code(name: str, world: World) -> None:
    case = BAD[name]
    request = case.make(world)
    # An action that takes every request has the case of another one.
    is_own = request.action.name == name
    arguments = arguments_of(request) if is_own else {"no such": 1}
    answer = call(world, name.replace(".", "_"), **arguments)
    assert answer.is_error
    codes = set(kinds_below(case.error)) if is_own else {"usage"}
    assert answer.structured_content["code"] in codes, answer


def test_the_schema_of_each_tool_takes_its_good_case(world: World) -> None:
    every = with_client(world.service, lambda client: client.list_tools()).tools
    listed = [tool for tool in every if not tool.name.startswith("op_")]
    assert {tool.name for tool in listed} == {name.replace(".", "_") for name in TOOLS}
    for tool in listed:
        checker = jsonschema.Draft202012Validator(tool.input_schema)
        checker.check_schema(tool.input_schema)
        name = tool.name.replace("_", ".", 1)
        case = GOOD[name]
        assert isinstance(case, Good)
        arguments = arguments_of(case.make(world))
        checker.validate({key: one for key, one in arguments.items() if one is not None})
        assert not checker.is_valid({"no such": 1})
        assert len(tool.description) > 30


def test_without_leave_to_write_no_tool_writes(world: World) -> None:
    listed = with_client(world.service, lambda client: client.list_tools(), tools="read").tools
    names = {tool.name for tool in listed}
    assert "kv_get" in names
    assert all(ACTIONS[name.replace("_", ".", 1)].kind is ActionKind.QUERY for name in names)
    assert all(tool.annotations.read_only_hint for tool in listed)
    refused = with_client(
        world.service,
        lambda client: client.call_tool("kv_write", {"database": "shop", "writes": []}),
        tools="read",
    )
    assert refused.is_error
    assert "no tool 'kv_write'" in refused.structured_content["error"]


def test_marks_tell_what_a_repeated_call_does(world: World) -> None:
    tools = McpTools(world.service, "all").tools
    assert tools["drive_write"].is_repeatable
    assert not tools["queue_offer"].is_repeatable


# --- content and bounds ---------------------------------------------------------------------------


def test_text_of_files_is_text_and_a_character_is_not_cut(world: World) -> None:
    written = call(world, "drive_write", drive="files", path="/t.txt", data="grün")
    assert written.structured_content["size"] == 5
    first = call(world, "drive_read", drive="files", path="/t.txt", count=3).structured_content
    assert (first["data"], first["next"]) == ("gr", 2)
    rest = call(world, "drive_read", drive="files", path="/t.txt", start=2).structured_content
    assert rest["data"] == "ün"
    assert "next" not in rest
    inside = call(world, "drive_read", drive="files", path="/t.txt", start=3).structured_content
    assert inside["data"] == {"$blob": "bc6e"}


@pytest.mark.parametrize(
    "data", [7, ["x"], {"$blob": "0g"}, {"$blob": 1}, {"blob": "00"}, "\ud800"]
)
def test_content_of_another_kind_is_refused(data: Any, world: World) -> None:
    answer = McpTools(world.service, "all").call(
        "drive_write", {"drive": "files", "path": "/t.txt", "data": data}, OPERATOR
    )
    assert answer.is_error
    assert answer.document["code"] == "usage"
    assert "data" in answer.document["error"]
    assert not world.node.drive("files").exists("/t.txt")


@pytest.mark.parametrize("more", [0, 1])
def test_a_value_that_is_too_long_is_named_by_its_hash(more: int, world: World) -> None:
    text = "x" * (RESULT_CHARACTERS_MAX - 2 + more)  # two quotes
    hash = world.node.keep("long", text)
    answer = call(world, "values_get", hash=hash.hex())
    assert not answer.is_error
    if not more:
        assert answer.structured_content["value"] == text
        return
    assert answer.structured_content["hash"] == hash.hex()
    assert len(answer.structured_content["beginning"]) < 2_000
    assert "value" not in answer.structured_content
    assert answer.content[1].uri == f"lattice://value/{hash.hex()}"

    async def follow(client: Any) -> Any:
        return await client.read_resource(answer.content[1].uri)

    assert json.loads(with_client(world.service, follow).contents[0].text) == text


def test_a_list_that_is_too_long_says_how_to_ask(world: World) -> None:
    world.node.queue("long").offer_many(["x" * 600_000] * 2)
    answer = call(world, "queue_range", topic="long")
    assert answer.is_error
    assert answer.structured_content["code"] == "limit"
    assert "count" in answer.structured_content["error"]
    assert not call(world, "queue_range", topic="long", count=1).is_error


@pytest.mark.parametrize(("levels", "is_shown"), [(-1, True), (0, False), (300, False)])
def test_a_deep_value_is_named_by_its_hash(levels: int, is_shown: bool, world: World) -> None:
    value: Any = 1
    for _ in range(RESULT_DEPTH_MAX + levels):
        value = [value]
    hash = world.node.keep("deep", value)
    deep = call(world, "values_get", hash=hash.hex())
    assert deep.structured_content["hash"] == hash.hex()
    assert ("value" in deep.structured_content) is is_shown
    world.node.database("shop")["deep"] = value
    answer = call(world, "kv_get", database="shop", key="deep")
    assert answer.is_error is not is_shown
    assert is_shown or answer.structured_content["code"] == "limit"


# --- resources ------------------------------------------------------------------------------------


def test_resources_are_values_by_hash_and_by_path(world: World) -> None:
    blob = world.node.keep("bytes", b"\x00\xff")

    async def use(client: Any) -> Any:
        templates = (await client.list_resource_templates()).resource_templates
        assert [one.name for one in templates] == ["value", "path"]
        assert (await client.list_resources()).resources == []
        path = f"lattice://path/kv/0x{world.owner.hex()}/value/shop"
        return [
            (await client.read_resource(uri)).contents[0]
            for uri in (
                f"lattice://value/{world.hash.hex()}",
                f"lattice://value/{blob.hex()}",
                path,
            )
        ]

    value, content, database = with_client(world.service, use)
    assert json.loads(value.text) == {"deep": [1, 2, 3]}
    assert (content.blob, content.mime_type) == ("AP8=", "application/octet-stream")
    assert json.loads(database.text)


def refusal_of(world: World, uri: str) -> Any:
    async def use(client: Any) -> Any:
        with pytest.raises(mcp.MCPError) as raised:
            await client.read_resource(uri)
        return raised.value.error

    return with_client(world.service, use)


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("lattice://value/zz", "usage"),
        (f"lattice://value/{'07' * 32}", "no-such-path"),
        ("lattice://path/none/such", "no-such-path"),
        ("file:///etc/passwd", "usage"),
    ],
)
def test_a_resource_that_is_not_there_is_an_error_with_a_code(
    uri: str, code: str, world: World
) -> None:
    assert refusal_of(world, uri).data == {"code": code}


def test_a_resource_has_a_bound(world: World) -> None:
    hash = world.node.keep("long", b"x" * (RESOURCE_CHARACTERS_MAX + 1))
    assert "REST" in refusal_of(world, f"lattice://value/{hash.hex()}").message


# --- rights and hostile arguments -----------------------------------------------------------------


def test_a_caller_has_its_rights_and_no_more(world: World) -> None:
    def ask(name: str, **arguments: Any) -> Any:
        answer = with_client(
            world.service, lambda client: client.call_tool(name, arguments), caller=ANONYMOUS
        )
        return answer.structured_content.get("code")

    assert ask("kv_get", database="shop", key="tea") is None
    assert ask("kv_write", database="shop", writes=[{"key": "a", "value": 1}]) == "unauthenticated"
    assert ask("pins_list") == "unauthenticated"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", {}),
        ("kv.get", {"database": "shop", "key": "tea"}),
        ("x" * 100_000, {}),
        ("kv_get", {}),
        ("kv_get", {"database": 7}),
        ("kv_get", {"database": ["shop"], "key": "tea"}),
        ("kv_get", {"database": "shop", "key": "tea", "sudo": True}),
        ("kv_get", {"database": "x" * 1_000_000, "key": "\x00"}),
        ("kv_get", {"database": "shop", "key": "tea", "owner": "../../etc"}),
        ("kv_range", {"database": "shop", "count": -1}),
        ("kv_range", {"database": "shop", "count": 10**30}),
        ("kv_range", {"database": "shop", "count": 1.5}),
        ("queue_range", {"topic": "log", "start": True}),
        ("kv_write", {"database": "shop", "writes": {"key": "a"}}),
        ("kv_write", {"database": "shop", "writes": [{"key": "a", "operation": "drop"}]}),
        ("values_get", {"hash": "07"}),
        ("values_get", {"hash": "g" * 64}),
        ("values_put", {"value": {"$blob": "0"}}),
        ("lattice_get", {"path": "a/" * 10_000}),
        ("stores_history", {"id": "' or 1=1"}),
        ("drive_read", {"drive": "files", "path": "/../../etc/passwd"}),
    ],
)
def test_hostile_arguments_are_tool_errors(
    name: str, arguments: dict[str, Any], world: World
) -> None:
    async def use(client: Any) -> Any:
        refused = await client.call_tool(name, arguments)
        return refused, await client.call_tool("node_status", {})

    refused, after = with_client(world.service, use)
    assert refused.is_error, refused
    assert refused.structured_content["code"] not in ("fault", "internal"), refused
    assert len(refused.structured_content["error"]) < 5_000
    assert "Traceback" not in refused.content[0].text
    assert not after.is_error


def test_null_is_an_argument_that_was_left_out(world: World) -> None:
    answer = call(world, "kv_get", database="shop", key="tea", owner=None)
    assert answer.structured_content["value"] == 3
    put = call(world, "values_put", value=None)
    assert not put.is_error


def test_a_fault_ends_one_call_and_keeps_its_text(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret insides")

    monkeypatch.setattr(world.service, "call", broken)
    answer = call(world, "node_status")
    assert answer.is_error
    assert answer.structured_content["code"] == "fault"
    assert "secret" not in answer.content[0].text
    assert "secret insides" in caplog.text


def test_values_keep_their_types_through_a_tool(world: World) -> None:
    value = {"$index": {"a": {"$blob": "00ff"}}}
    put = call(world, "values_put", value={"b": [1, 2.5, True, None], "m": value})
    assert not put.is_error, put
    assert isinstance(world.node.value(bytes.fromhex(put.structured_content["hash"])), Map)


def test_calls_over_http_are_recorded_and_counted_like_others(world: World, tmp_path: Path) -> None:
    limits = RateLimits({"failures": Allowance(0.001, 2)})
    clock, audit = StoppedClock(NOW_MS), Audit()
    access = AccessControl(authenticator(limits), Policies(tmp_path), limits, audit, clock)
    door = McpDoor(McpTools(Service(world.node, access=access), "all"))
    wanted = {"name": "kv_write", "arguments": {"database": "shop", "writes": [{"key": "a"}]}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": wanted}

    async def run() -> list[Any]:
        transport = httpx.ASGITransport(app=door.app(access.enter))
        async with door.serving(), httpx.AsyncClient(transport=transport) as client:
            shown: tuple[dict[str, str], ...] = ({}, *({"authorization": "Bearer x"},) * 3)
            return [
                await client.post(
                    "http://localhost/mcp", json=body, headers={"accept": "application/json", **one}
                )
                for one in shown
            ]

    nobody, first, second, last = asyncio.run(run())
    assert nobody.json()["result"]["structuredContent"]["code"] == "unauthenticated"
    assert [first.status_code, second.status_code, last.status_code] == [401, 401, 429]
    assert "retry-after" in last.headers
    assert first.json()["code"] == "unauthenticated"
    records = audit.ring.after(0)[1]
    assert {one.door for one in records} == {"mcp"}
    assert [one.action for one in records] == ["kv.write", *["authenticate"] * 3]


# --- operations of the venue ----------------------------------------------------------------------


def test_the_operations_of_the_venue_are_tools(world: World) -> None:
    async def use(client: Any) -> None:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        back = tools["op_echo_back"]
        assert "Back" in back.description
        assert back.input_schema["type"] == "object"
        done = (await client.call_tool("op_echo_back", {"a": [1, None]})).structured_content
        assert (done["status"], done["output"]) == ("COMPLETE", {"a": [1, None]})
        failed = await client.call_tool("op_echo_fail", {"text": "nothing left"})
        assert failed.is_error
        assert failed.structured_content["error"] == "nothing left"
        told = await client.call_tool("venue_job", {"id": failed.structured_content["job"]})
        assert told.structured_content["status"] == "FAILED"
        wrong = await client.call_tool("op_echo_fail", {})
        assert (wrong.is_error, wrong.structured_content["code"]) == (True, "usage")
        none = await client.call_tool("op_none", {})
        assert (none.is_error, none.structured_content["code"]) == (True, "usage")

    with_client(world.service, use)


def test_an_operation_that_goes_on_answers_with_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.service.handlers.venue._WAIT_S", 0.05)

    async def use(client: Any) -> None:
        begun = (await client.call_tool("op_ledger_pure", {"ask": "which one?"})).structured_content
        assert "goes on" in begun["note"]
        sent = await client.call_tool("venue_message", {"id": begun["job"], "message": "this"})
        assert not sent.is_error
        with world.service.stream(WatchJob(id=bytes.fromhex(begun["job"])), OPERATOR) as records:
            assert [one.status for one in records][-1] == "COMPLETE"

    with_client(world.service, use)


def test_operations_are_no_tools_for_who_may_only_read(world: World) -> None:
    async def use(client: Any) -> None:
        names = [one.name for one in (await client.list_tools()).tools]
        assert "venue_job" in names
        assert not any(name.startswith("op_") for name in names)
        refused = await client.call_tool("op_echo_back", {"a": 1})
        assert refused.is_error

    with_client(world.service, use, tools="read")
    assert McpTools(world.service, "all").operations(ANONYMOUS) == {}
    assert McpTools(Service(world.node), "all").operations(OPERATOR) == {}
