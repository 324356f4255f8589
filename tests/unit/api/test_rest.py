"""The REST door: representations, ranges, bodies of strangers, problems, its description."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import ACTIONS
from datalattice.cells import Map, encode, encode_message, to_text
from datalattice.client import Node
from datalattice.errors import RateLimited, Unauthenticated
from datalattice.service import Service, Streamed
from datalattice.service.access import (
    ANONYMOUS,
    AccessControl,
    Audit,
    Credentials,
    Policies,
    Principal,
    RateLimits,
)
from datalattice.service.handlers.drive import ENTRIES_MAX
from datalattice.testing.callers import NOW_MS, authenticator
from datalattice.testing.clocks import StoppedClock

pytest.importorskip("starlette")
testclient = pytest.importorskip("starlette.testclient")

from datalattice.api.rest import (  # noqa: E402 - only where starlette is
    JSON_DEPTH_MAX,
    JSON_ELEMENTS_MAX,
    LOCAL_HOSTS,
    rest_app,
)

BODY_MAX = 10_000
API = "/api/v1"
VALUE = Map.of({"deep": b"\x00\xff", "n": 1})


@pytest.fixture
def node() -> Iterator[Node]:
    with datalattice.open(":memory:") as made:
        made.queue("log").offer("a")
        yield made


@pytest.fixture
def asked() -> list[Credentials]:
    return []


@pytest.fixture
def client(node: Node, asked: list[Credentials]) -> Any:
    def enter(credentials: Credentials) -> Principal:
        asked.append(credentials)
        shown = credentials.credential_headers().get("authorization")
        if shown == "Bearer busy":
            raise RateLimited("too many", 7.2)
        if shown is not None:
            raise Unauthenticated("the credential is not valid")
        return ANONYMOUS if "x-anonymous" in credentials.headers else Principal(None, "socket")

    app, _ = rest_app(Service(node), enter, body_bytes_max=BODY_MAX)
    return testclient.TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def kept(node: Node) -> str:
    return f"{API}/values/{node.keep('kept', VALUE).hex()}"


# --- representations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "type", "body", "mark"),
    [
        ("", "application/cvx-raw", encode_message(VALUE), ""),
        ("*/*", "application/cvx-raw", encode_message(VALUE), ""),
        ("application/cvx-raw; cells=1", "application/cvx-raw; cells=1", encode(VALUE), ";top"),
        ("application/cvx", "application/cvx", to_text(VALUE).encode(), ";cvx"),
        (
            "text/html, application/cvx;q=0.3, application/json;q=0.9",
            "application/json",
            None,
            ";json",
        ),
    ],
)
def test_a_value_comes_as_it_is_accepted(
    client: Any, kept: str, accept: str, type: str, body: bytes | None, mark: str
) -> None:
    answer = client.get(kept, headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, type)
    hash = kept.rpartition("/")[2]
    assert answer.headers["etag"] == f'"{hash}{mark}"'
    assert answer.headers["x-value-id"] == hash
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["vary"] == "Accept"
    if body is None:
        assert answer.json() == {"deep": {"$blob": "00ff"}, "n": 1}
    else:
        assert answer.content == body
    again = client.get(kept, headers={"accept": accept, "if-none-match": f'"x", "{hash}{mark}"'})
    assert (again.status_code, again.content) == (304, b"")
    head = client.head(kept, headers={"accept": accept})
    assert (head.status_code, head.content) == (200, b"")


def test_no_accepted_type_and_no_known_body(client: Any, kept: str) -> None:
    assert client.get(kept, headers={"accept": "image/png"}).status_code == 406
    assert client.get(kept, headers={"accept": "application/octet-stream"}).status_code == 406
    answer = client.post(f"{API}/values", content=b"x", headers={"content-type": "image/png"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize(
    ("type", "body"),
    [
        ("application/cvx-raw", encode_message(VALUE)),
        ("application/json", b'{"deep": {"$blob": "00ff"}, "n": 1}'),
        ("application/cvx", to_text(VALUE).encode()),
    ],
)
def test_a_value_is_taken_in_each_form(client: Any, node: Node, type: str, body: bytes) -> None:
    first = client.post(f"{API}/values?label=a", content=body, headers={"content-type": type})
    assert first.status_code == 201
    assert node.value(bytes.fromhex(first.json()["hash"])) == VALUE
    assert client.get(first.headers["location"]).content == encode_message(VALUE)
    again = client.post(f"{API}/values?label=a", content=body, headers={"content-type": type})
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("range", "status", "body", "span"),
    [
        ("bytes=1-3", 206, b"bcd", "bytes 1-3/6"),
        ("bytes=4-", 206, b"ef", "bytes 4-5/6"),
        ("bytes=-2", 206, b"ef", "bytes 4-5/6"),
        ("bytes=2-99", 206, b"cdef", "bytes 2-5/6"),
        ("bytes=6-", 416, b"", "bytes */6"),
        ("bytes=3-1", 200, b"abcdef", None),
        ("bytes=0-1,3-4", 200, b"abcdef", None),
        ("bytes=x-1", 200, b"abcdef", None),
        ("chapters=1", 200, b"abcdef", None),
    ],
)
def test_one_range_of_the_bytes_of_a_blob(
    client: Any, node: Node, range: str, status: int, body: bytes, span: str | None
) -> None:
    path = f"{API}/values/{node.keep('blob', b'abcdef').hex()}"
    headers = {"accept": "application/octet-stream", "range": range}
    answer = client.get(path, headers=headers)
    assert (answer.status_code, answer.content) == (status, body)
    assert answer.headers.get("content-range") == span
    stale = client.get(path, headers={**headers, "if-range": '"other"'})
    assert (stale.status_code, stale.content) == (200, b"abcdef")


# --- requests of strangers ------------------------------------------------------------------------


def offer(client: Any, body: bytes, type: str = "application/json", path: str = "log") -> Any:
    return client.post(f"{API}/queues/{path}/records", content=body, headers={"content-type": type})


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad-format"),
        (b"{", 400, "bad-format"),
        (b"\xff", 400, "bad-format"),
        (b'[{"a": 1, "a": 2}]', 400, "bad-format"),
        (b"[NaN]", 400, "bad-format"),
        (b'{"values": 1}', 400, "usage"),
        (b"[]", 400, "usage"),
        (b'[{"$nothing": 1}]', 400, "usage"),
        (b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX, 201, ""),
        (b"[" * (JSON_DEPTH_MAX + 1) + b"]" * (JSON_DEPTH_MAX + 1), 413, "limit"),
        (b'["' + b"[" * 100 + b'"]', 201, ""),
        (b'"' + b"[" * 100, 400, "bad-format"),  # brackets in a string, though it does not end
        (b'"' + b'\\"' * (BODY_MAX // 2 - 1), 400, "bad-format"),  # scanned in one pass
        (b"[" * 5_000, 413, "limit"),
        (b'["' + b"x" * (BODY_MAX - 4) + b'"]', 201, ""),
        (b'["' + b"x" * (BODY_MAX - 3) + b'"]', 413, "limit"),
    ],
)
def test_bodies_are_checked(client: Any, body: bytes, status: int, code: str) -> None:
    answer = offer(client, body)
    assert answer.status_code == status, answer.text
    if code:
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["code"] == code
        assert problem["type"] == f"urn:datalattice:error:{code}"
        assert (problem["status"], problem["error"]) == (status, problem["detail"])


def test_elements_of_a_body_are_counted(node: Node) -> None:
    app, _ = rest_app(Service(node), lambda _: Principal(None, "socket"))
    client = testclient.TestClient(app)
    for count, status in ((JSON_ELEMENTS_MAX - 1, 201), (JSON_ELEMENTS_MAX + 1, 413)):
        body = b"[" + b",".join([b"1"] * count) + b"]"
        assert offer(client, body).status_code == status, count


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/queues/log/records?startt=1", 400),
        ("/queues/log/records?start=x", 400),
        ("/queues/log/records?start=1&start=2", 400),
        ("/queues/log/records?topic=other", 400),
        ("/queues/log/records?" + "&".join(["count=1"] * 1_001), 400),
        ("/values/zz", 400),
        ("/values/" + "00" * 32, 404),
        ("/nothing", 404),
        ("/lattice/kv/..%2f..%2fetc", 404),
        ("/lattice/%22", 400),
        ("/drives/x/stat/../../../etc/passwd", 404),
    ],
)
def test_targets_are_checked(client: Any, path: str, status: int) -> None:
    answer = client.get(f"{API}{path}")
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status


def test_names_with_slashes_and_percent_signs(client: Any, node: Node) -> None:
    assert offer(client, b'["x"]', path="a%2Fb%25c").status_code == 201
    assert list(node.queue("a/b%c")) == ["x"]
    node.database("d")["k/1"] = 2
    assert client.get(f"{API}/databases/d/keys/k/1").json()["value"] == 2


def test_wrong_verbs(client: Any) -> None:
    answer = client.put(f"{API}/lattice/kv")
    assert (answer.status_code, answer.json()["status"]) == (405, 400)
    assert "POST" in answer.headers["allow"]


def test_who_asks_is_told_as_it_was_written(client: Any, asked: list[Credentials]) -> None:
    offer(client, b'["x"]', path="a%2Fb")
    (found,) = asked
    assert found.url == f"http://testserver{API}/queues/a%2Fb/records"
    assert (found.method, found.local, found.origin.door) == ("POST", None, "rest")
    assert (found.body_sha256, found.is_unread) == (None, True)


def test_refusals(client: Any) -> None:
    bad = client.get(f"{API}/nothing-or-not", headers={"authorization": "Bearer x"})
    assert bad.status_code == 404  # no action, so nobody is asked who it is
    bad = client.get(f"{API}/status", headers={"authorization": "Bearer x"})
    assert (bad.status_code, bad.headers["www-authenticate"]) == (401, "Bearer")
    busy = client.get(f"{API}/status", headers={"authorization": "Bearer busy"})
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "7")
    nobody = client.get(f"{API}/peers", headers={"x-anonymous": "1"})
    assert nobody.status_code == 401


def test_a_fault_is_told_without_its_text(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "call", lambda *_: 1 / 0)
    answer = client.get(f"{API}/status")
    assert (answer.status_code, answer.json()["code"]) == (500, "fault")
    assert "division" not in answer.text


def test_only_known_names_are_served_on_loopback(node: Node) -> None:
    app, _ = rest_app(Service(node), lambda _: ANONYMOUS, hosts=LOCAL_HOSTS)
    for host, status in (
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:7", 200),
        ("evil.example", 421),
        ("localhost.evil.example:80", 421),
    ):
        client = testclient.TestClient(app)
        assert client.get(f"{API}/status", headers={"host": host}).status_code == status, host
    headers = {"host": "localhost", "origin": "https://evil.example"}
    assert testclient.TestClient(app).get(f"{API}/status", headers=headers).status_code == 421


# --- description ----------------------------------------------------------------------------------


def test_every_route_is_described(client: Any) -> None:
    document = client.get(f"{API}/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    described = {
        one["operationId"] for verbs in document["paths"].values() for one in verbs.values()
    }
    assert described == {
        name + (f".{number + 1}" if number else "")
        for name, one in ACTIONS.items()
        for number in range(len(one.routes))
    }
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text or name == "Problem"
    page = client.get(f"{API}/")
    assert page.headers["content-type"].startswith("text/html")
    assert all(name in page.text for name in described)


# --- drives ---------------------------------------------------------------------------------------


def test_a_directory_is_listed_in_pages(client: Any, node: Node) -> None:
    drive, url = node.drive("d"), f"{API}/drives/d/list/"
    drive.ensure()
    for name in "abcde":
        drive.write(f"/{name}", b"x")
    assert "next" not in {one for one, value in client.get(url).json().items() if value}
    found, start = [], ""
    for size in (2, 2, 1):
        page = client.get(url, params={"count": 2, "start": start}).json()
        assert len(page["entries"]) == size
        found += [one["path"] for one in page["entries"]]
        start = page.get("next", "")
    assert (found, start) == (["/a", "/b", "/c", "/d", "/e"], "")
    assert client.get(url, params={"count": ENTRIES_MAX}).status_code == 200
    assert client.get(url, params={"count": ENTRIES_MAX + 1}).status_code == 413
    assert client.get(url, params={"start": "61"}).status_code == 400


def test_a_move_keeps_to_the_versions_that_its_caller_knows(client: Any, node: Node) -> None:
    drive = node.drive("d")
    drive.write("/a", b"a")
    drive.write("/b", b"b")
    a, b = (drive.stat(path).hash.hex() for path in ("/a", "/b"))
    for verb in ("copies", "moves"):
        url, wanted = f"{API}/drives/d/{verb}", {"path": "/a", "target": "/b", "overwrite": True}
        for wrong, tag in (({}, b), ({"target_if_match": a}, a), ({"if_match": b}, "")):
            headers = {"if-match": f'"{tag}"'} if tag else {}
            status = client.post(url, json={**wanted, **wrong}, headers=headers).status_code
            assert status == (412 if tag else 409)
            assert drive.read("/b") == b"b"
        right = {**wanted, "target_if_match": b}
        assert client.post(url, json=right, headers={"if-match": f'"{a}"'}).status_code == 204
        assert drive.read("/b") == b"a"
        drive.write("/b", b"b")
        b = drive.stat("/b").hash.hex()
    assert not drive.exists("/a")


# --- versions of rules ----------------------------------------------------------------------------


def test_a_rule_has_a_tag_and_is_set_where_the_tag_is_the_expected_one(tmp_path: Path) -> None:
    with datalattice.open(":memory:") as node:
        access = AccessControl(
            authenticator(), Policies(tmp_path), RateLimits(), Audit(), StoppedClock(NOW_MS)
        )
        app, _ = rest_app(Service(node, access=access), lambda _: Principal(None, "socket"))
        client = testclient.TestClient(app, raise_server_exceptions=False)
        url, rights = f"{API}/access/lattice/kv", {"rights": [{"right": "r", "who": ["public"]}]}
        made = client.put(url, json={**rights, "if_match": ""})
        tag = made.headers["etag"]
        assert (made.status_code, client.get(url).headers["etag"]) == (200, tag)
        other = {"rights": [{"right": "r", "who": []}]}
        assert client.put(url, json=other, headers={"if-match": '"other"'}).status_code == 412
        for wrong in ("other", '"a", "b"', "*"):
            assert client.put(url, json=other, headers={"if-match": wrong}).status_code == 400
        twice = client.put(url, json={**other, "if_match": "x"}, headers={"if-match": tag})
        assert twice.status_code == 400
        assert client.put(url, json=other, headers={"if-match": tag}).headers["etag"] != tag
        assert client.delete(url, headers={"if-match": tag}).status_code == 412
        assert client.delete(url).status_code == 204
        assert client.get(url).json()["version"] == ""


# --- events ---------------------------------------------------------------------------------------


@pytest.fixture
def events(node: Node) -> Iterator[Any]:
    """Give what returns the events of a request, until the door drains after `count` of them."""
    app, door = rest_app(Service(node), lambda _: Principal(None, "socket"), heartbeat_s=0.01)

    def read(path: str, count: int, **headers: str) -> tuple[int, list[dict[str, str]]]:
        found: list[dict[str, str]] = []

        async def answer() -> int:
            target, _, query = path.partition("?")
            scope = {
                "type": "http", "method": "GET", "path": target, "query_string": query.encode(),
                "headers": [
                    (name.replace("_", "-").encode(), text.encode())
                    for name, text in headers.items()
                ],
                "server": ("localhost", 80), "scheme": "http",
            }  # fmt: skip
            status, got = [0], bytearray()

            async def send(message: Any) -> None:
                status[0] = message.get("status", status[0])
                got.extend(message.get("body", b""))
                found[:] = [
                    dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
                    for block in got.decode().split("\n\n")[:-1]
                ]
                if sum("data" in one for one in found) >= count:
                    door.drain()

            asked = iter([{"type": "http.request"}])

            async def receive() -> Any:
                for message in asked:
                    return message
                return await asyncio.Event().wait()  # the reader stays

            await app(scope, receive, send)
            return status[0]

        door.is_draining = False
        return asyncio.run(answer()), found

    yield read
    door.close()


def test_a_stream_ends_if_its_reader_leaves_before_the_first_line(node: Node) -> None:
    begun: list[Streamed[Any]] = []

    class Noting(Service):
        def stream(self, *given: Any) -> Streamed[Any]:
            begun.append(super().stream(*given))
            return begun[-1]

    app, door = rest_app(Noting(node), lambda _: Principal(None, "socket"))
    scope = {
        "type": "http", "method": "GET", "path": f"{API}/queues/log/follow", "query_string": b"",
        "headers": [], "server": ("localhost", 80), "scheme": "http",
    }  # fmt: skip

    async def leave() -> None:
        sending = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sending.set()
                await asyncio.Event().wait()  # the reader takes nothing

        async def receive() -> Any:
            await sending.wait()
            return {"type": "http.disconnect"}

        await app(scope, receive, send)

    asyncio.run(leave())
    door.close()
    assert [one.closed for one in begun] == [True]


def test_each_event_has_a_token_and_the_last_one_says_why(events: Any, node: Node) -> None:
    node.queue("log").offer_many(["b", "c"])
    status, found = events(f"{API}/queues/log/follow", 3)
    assert status == 200
    begun, *items, end = [one for one in found if one]
    assert list(begun) == ["id"]
    assert [json.loads(one["data"])["value"] for one in items] == ["a", "b", "c"]
    assert all("resume" not in json.loads(one["data"]) for one in items)
    said = json.loads(end["data"])
    assert (end["event"], said["reason"], said["status"]) == ("end", "draining", 503)
    assert said["resume"] == items[-1]["id"]
    # As a browser goes on, and as a program does.
    for path, headers in (
        (f"{API}/queues/log/follow", {"last_event_id": items[0]["id"]}),
        (f"{API}/queues/log/follow?resume={items[0]['id']}", {}),
        (f"{API}/queues/log/follow?resume={items[1]['id']}", {"last_event_id": items[0]["id"]}),
    ):
        _, rest = events(path, 2, **headers)
        values = [
            json.loads(one["data"])["value"] for one in rest if "event" not in one and "data" in one
        ]
        assert values == ["b", "c"]


def test_a_position_that_is_gone_is_410(client: Any, events: Any, node: Node) -> None:
    _, found = events(f"{API}/queues/log/follow", 1)
    token = next(one["id"] for one in found if "data" in one)
    node.queue("log").offer_many(["b", "c"])
    node.queue("log").truncate(2)
    answer = client.get(f"{API}/queues/log/follow", headers={"last-event-id": token})
    assert (answer.status_code, answer.json()["code"]) == (410, "stale-token")
    assert "a fresh start begins at offset 2" in answer.json()["detail"]


def test_a_heartbeat_has_the_newest_position(events: Any, node: Node) -> None:
    node.database("d")["other"] = 1
    app_events = events(f"{API}/databases/d/watch?prefix=k", 0)[1]
    assert all("id" in one for one in app_events if "event" not in one)
