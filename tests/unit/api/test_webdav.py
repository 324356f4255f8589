"""The WebDAV door: methods, conditions, paths of strangers, properties, locks, credentials."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.actions import PIECE_BYTES_MAX, CopyFile, ListDirectory, MoveFile
from datalattice.client import Node
from datalattice.client.credentials import content_digest
from datalattice.errors import RateLimited, Unauthenticated
from datalattice.service import Service
from datalattice.service.access import (
    ANONYMOUS,
    AccessControl,
    Audit,
    Credentials,
    Policies,
    Policy,
    Principal,
    RateLimits,
)
from datalattice.testing.callers import NOW_MS, authenticator
from datalattice.testing.clocks import StoppedClock

pytest.importorskip("starlette")
testclient = pytest.importorskip("starlette.testclient")

from datalattice.api.rest import LOCAL_HOSTS, rest_app  # noqa: E402 - only where starlette is
from datalattice.api.webdav import (  # noqa: E402
    CONDITIONS_MAX,
    PAGE_ENTRIES,
    WEBDAV_BASE,
    XML_BYTES_MAX,
    XML_DEPTH_MAX,
    XML_ELEMENTS_MAX,
    WebDavDoor,
)

ROOT = f"{WEBDAV_BASE}/own/files"
OTHER = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
DAV = "{DAV:}"


class Dav:
    """A client that speaks as its own user: `x-as` names another one."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __call__(self, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        url = path if path.startswith("/dlfs") else f"{ROOT}{path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, url, content=body, headers=named)

    def put(self, path: str, body: Any = b"x", **headers: str) -> int:
        return int(self("PUT", path, body, **headers).status_code)

    def lock(self, path: str, *, kind: str = "exclusive", **headers: str) -> Any:
        body = (
            f'<d:lockinfo xmlns:d="DAV:"><d:lockscope><d:{kind}/></d:lockscope>'
            "<d:locktype><d:write/></d:locktype><d:owner>Jörg &amp; co</d:owner></d:lockinfo>"
        )
        return self("LOCK", path, body.encode(), **headers)

    def find(self, path: str, *names: str, depth: str = "0") -> dict[str, dict[str, str | None]]:
        """Return the properties of each resource: texts, None for an empty element."""
        wanted = "".join(
            f'<{n.rpartition("}")[2]} xmlns="{n[1:].rpartition("}")[0]}"/>' for n in names
        )
        body = f'<d:propfind xmlns:d="DAV:"><d:prop>{wanted}</d:prop></d:propfind>' if names else ""
        answer = self("PROPFIND", path, body.encode(), depth=depth)
        assert answer.status_code == 207, answer.text
        found: dict[str, dict[str, str | None]] = {}
        for response in ET.fromstring(answer.content):
            held = found.setdefault(str(response.findtext(f"{DAV}href")), {})
            for stat in response.findall(f"{DAV}propstat"):
                if "200" in str(stat.findtext(f"{DAV}status")):
                    for prop in stat.find(f"{DAV}prop") or ():
                        inside = [one.tag for one in prop]
                        held[prop.tag] = prop.text if not inside else ",".join(inside)
        return found


@pytest.fixture
def node() -> Iterator[Node]:
    with datalattice.open(":memory:") as made:
        drive = made.drive("files")
        drive.ensure()
        drive.write("/a.txt", b"0123456789")
        drive.makedirs("/d/e")
        drive.write("/d/e/f", b"f")
        yield made


@pytest.fixture
def asked() -> list[Credentials]:
    return []


def with_access(node: Node, folder: Path, policy: Policy) -> tuple[Service, Policies]:
    policies = Policies(folder, policy)
    clock = StoppedClock(NOW_MS)
    return Service(
        node, access=AccessControl(authenticator(), policies, RateLimits(), Audit(), clock)
    ), policies


@pytest.fixture
def service(node: Node, tmp_path: Path) -> Service:
    return with_access(node, tmp_path, Policy(admins=frozenset([OTHER])))[0]


@pytest.fixture
def dav(service: Service, asked: list[Credentials]) -> Iterator[Dav]:
    def enter(credentials: Credentials) -> Principal:
        asked.append(credentials)
        shown = credentials.credential_headers().get("authorization")
        if shown == "Bearer busy":
            raise RateLimited("too many", 7.2)
        if shown == "Bearer good":
            return Principal(OTHER, "token")
        if shown is not None:
            raise Unauthenticated("the credential is not valid")
        return ANONYMOUS if "x-anonymous" in credentials.headers else Principal(None, "socket")

    door = WebDavDoor(service, enter)
    app, rest = rest_app(service, enter, mounts={WEBDAV_BASE: door})
    yield Dav(testclient.TestClient(app, raise_server_exceptions=False))
    door.close()
    rest.close()


def scope_of(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"testserver")],
        "server": ("testserver", 80),
        "scheme": "http",
    }


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_written_read_and_removed(dav: Dav, node: Node) -> None:
    made = dav("PUT", "/b%20%C3%BC.html", b"<p>")
    assert made.status_code == 201
    assert node.drive("files").read("/b ü.html") == b"<p>"
    got = dav("GET", "/b%20%C3%BC.html")
    assert (got.status_code, got.content, got.headers["etag"]) == (
        200,
        b"<p>",
        made.headers["etag"],
    )
    assert got.headers["content-type"] == "text/html"
    # A page that somebody put there cannot act for whoever looks at it.
    assert got.headers["content-security-policy"].startswith("sandbox")
    assert got.headers["x-content-type-options"] == "nosniff"
    head = dav("HEAD", "/b%20%C3%BC.html")
    assert (head.content, head.headers["content-length"]) == (b"", "3")
    assert dav.put("/b%20%C3%BC.html", b"") == 204
    assert dav("GET", "/b%20%C3%BC.html").content == b""
    assert dav("DELETE", "/b%20%C3%BC.html").status_code == 204
    assert dav("GET", "/b%20%C3%BC.html").status_code == 404
    assert dav("DELETE", "/b%20%C3%BC.html").status_code == 404


def test_the_entity_tag_is_of_the_content_alone(dav: Dav) -> None:
    first = dav("PUT", "/t", b"one").headers["etag"]
    assert first.startswith('"')
    assert dav("PUT", "/t", b"two").headers["etag"] != first
    assert dav("PUT", "/u", b"one").headers["etag"] == first
    patch = (
        '<propertyupdate xmlns="DAV:"><set><prop><x xmlns="u:">1</x></prop></set></propertyupdate>'
    )
    assert dav("PROPPATCH", "/u", patch.encode()).status_code == 207
    assert dav("HEAD", "/u").headers["etag"] == first


@pytest.mark.parametrize(
    ("range_", "status", "content", "shown"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=4-2", 200, b"0123456789", None),
        (f"bytes=0-{'9' * 5_000}", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
def test_a_range_is_answered(
    dav: Dav, range_: str, status: int, content: bytes, shown: str | None
) -> None:
    answer = dav("GET", "/a.txt", range=range_)
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-range") == shown


def test_a_range_of_another_version_is_the_whole(dav: Dav) -> None:
    tag = dav("HEAD", "/a.txt").headers["etag"]
    assert dav("GET", "/a.txt", range="bytes=0-1", if_range=tag).status_code == 206
    assert dav("GET", "/a.txt", range="bytes=0-1", if_range='"other"').status_code == 200
    assert dav("GET", "/a.txt", if_none_match=f'"x", W/{tag}').status_code == 304
    assert dav("GET", "/a.txt", if_none_match="*").status_code == 304
    assert dav("GET", "/a.txt", if_match='"x"').status_code == 412
    assert dav("GET", "/a.txt", if_match=tag).status_code == 200


def test_a_file_of_many_pieces_comes_as_one(dav: Dav, node: Node) -> None:
    data = bytes(range(256)) * (PIECE_BYTES_MAX // 128)
    node.drive("files").write("/large", data + b"end")
    assert dav("GET", "/large").content == data + b"end"
    part = dav("GET", "/large", range=f"bytes=5-{PIECE_BYTES_MAX + 6}")
    assert part.content == data[5 : PIECE_BYTES_MAX + 7]


def test_a_large_file_is_taken_as_it_comes(dav: Dav, node: Node) -> None:
    def body() -> Iterator[bytes]:
        for number in range(40):
            yield bytes([number]) * 100_000

    assert dav.put("/large", body()) == 201
    assert node.drive("files").read("/large") == b"".join(body())
    assert dav.put("/large", body(), if_none_match="*") == 412
    assert dav.put("/none/large", body()) == 409


def test_an_upload_that_breaks_off_leaves_the_file_as_it_was(dav: Dav, node: Node) -> None:
    async def broken() -> int:
        messages = iter([{"type": "http.request", "body": b"x" * 3_000_000, "more_body": True}])
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 0))

        await dav.client.app(scope_of("PUT", f"{ROOT}/a.txt"), receive, send)
        return statuses[0]

    assert asyncio.run(broken()) == 499
    assert node.drive("files").read("/a.txt") == b"0123456789"


def test_a_signed_body_is_checked_at_its_end(node: Node, tmp_path: Path) -> None:
    service, _ = with_access(node, tmp_path, Policy(admins=frozenset([OTHER])))
    door = WebDavDoor(service, lambda _: Principal(OTHER, "signature"))
    signed = content_digest(hashlib.sha256(b"as signed").digest())
    app, rest = rest_app(service, lambda _: Principal(OTHER, "signature"), mounts={"/dlfs": door})
    client = testclient.TestClient(app)
    headers = {"content-digest": signed, "signature-input": "x"}
    assert client.put(f"{ROOT}/s", content=b"another", headers=headers).status_code == 401
    assert not node.drive("files").exists("/s")
    assert client.put(f"{ROOT}/s", content=b"as signed", headers=headers).status_code == 201
    rest_url = "/api/v1/drives/files/files/s"
    assert client.put(rest_url, content=b"another", headers=headers).status_code == 401
    assert node.drive("files").read("/s") == b"as signed"
    assert client.put(rest_url, content=b"as signed", headers=headers).status_code == 200
    door.close()
    rest.close()


def test_a_write_keeps_to_what_its_caller_expects(dav: Dav, node: Node) -> None:
    tag = dav("HEAD", "/a.txt").headers["etag"]
    assert dav.put("/a.txt", if_match='"x"') == 412
    assert dav.put("/a.txt", if_none_match="*") == 412
    assert dav.put("/a.txt", if_none_match=f'"x", {tag}') == 412
    assert dav.put("/new", if_match="*") == 412
    assert node.drive("files").read("/a.txt") == b"0123456789"
    assert not node.drive("files").exists("/new")
    assert dav.put("/new", if_none_match="*") == 201
    assert dav.put("/a.txt", if_match=f'"y", {tag}') == 204
    assert dav("DELETE", "/a.txt", if_match=tag).status_code == 412
    assert dav.put("/a.txt", if_match="no quotes") == 400
    now = dav("HEAD", "/a.txt").headers["etag"]
    assert dav("DELETE", "/a.txt", if_match=now).status_code == 204


def test_a_write_between_the_look_and_the_write_is_noticed(
    dav: Dav, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = dav("HEAD", "/a.txt").headers["etag"]
    call = Service.upload
    begun = False

    def slow(self: Service, request: Any, caller: Principal) -> Any:
        nonlocal begun
        if request.action.name == "drive.put" and not begun:
            begun = True
            node.drive("files").write("/a.txt", b"theirs")
        return call(self, request, caller)

    monkeypatch.setattr(Service, "upload", slow)
    assert dav.put("/a.txt", b"mine", if_match=tag) == 412
    assert node.drive("files").read("/a.txt") == b"theirs"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/none/x", 409),
        ("PUT", "/a.txt/x", 409),
        ("PUT", "/d", 405),
        ("PUT", "/x/", 405),
        ("PUT", "", 405),
        ("PUT", "/dlfs/own/absent/x", 409),
        ("MKCOL", "/none/x", 409),
        ("MKCOL", "/d", 405),
        ("MKCOL", "/a.txt", 405),
        ("MKCOL", "", 405),
        ("MKCOL", "/dlfs/own", 405),
        ("DELETE", "", 403),
        ("DELETE", "/dlfs/own/absent/x", 404),
        ("GET", "/dlfs/own/absent/", 404),
        ("GET", "/dlfs/nobody/", 404),
        ("GET", "/a.txt/x", 404),
        ("PROPFIND", "/a.txt/x", 404),
        ("PROPFIND", "/dlfs/own/absent", 404),
        ("POST", "/a.txt", 405),
        ("PROPPATCH", "/dlfs/own/", 403),
        ("LOCK", "/dlfs/own/", 403),
    ],
)
def test_what_cannot_be_done_has_its_status(dav: Dav, method: str, path: str, status: int) -> None:
    headers = {"depth": "0"} if method == "PROPFIND" else {}
    assert dav(method, path, **headers).status_code == status
    assert dav("GET", "/dlfs/own/").text.count("<li>") == 1  # no drive was made on the way


def test_a_body_that_is_not_wanted_or_too_large_is_refused(dav: Dav) -> None:
    assert dav("MKCOL", "/x", b"<x/>").status_code == 415
    assert dav.put("/x", b"x", content_range="bytes 0-0/5") == 400
    assert dav("PROPFIND", "/a.txt", b"x" * (XML_BYTES_MAX + 1), depth="0").status_code == 413


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/dlfs/own/files/../../../etc/passwd", 400),
        ("/dlfs/own/files/%2e%2e/x", 400),
        ("/dlfs/own/%2e/x", 400),
        ("/dlfs/own/files/a%2fb", 400),
        ("/dlfs/own/files/a%00b", 400),
        ("/dlfs/own/files//x", 400),
        ("/dlfs//own/x", 400),
        ("/dlfs/own/files/%zz", 400),
        (f"/dlfs/own/files/{'n' * 4_097}", 400),
        ("/dlfs/own/files" + "/n" * 101, 400),
        ("/dlfs/own/a%0ab/x", 400),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(dav: Dav, path: str, status: int) -> None:
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x"}

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status", 0))

    # As they are written: a client would resolve `..` itself.
    asyncio.run(dav.client.app(scope_of("PUT", path), receive, send))
    assert statuses[0] == status


def test_names_may_have_any_other_character(dav: Dav, node: Node) -> None:
    for raw, name in (
        ("%01%7f", "\x01\x7f"),
        ("%ff", "\udcff"),
        ("a%26%3Cb%3E%22", 'a&<b>"'),
        ("%F0%9F%90%9F;x=1", "🐟;x=1"),
        ("..a", "..a"),
    ):
        assert dav.put(f"/d/{raw}") == 201
        found = dav.find("/d", f"{DAV}displayname", depth="1")
        assert any(name in node.drive("files").list("/d") for _ in [0])
        href = next(one for one in found if one.rstrip("/") not in (f"{ROOT}/d", f"{ROOT}/d/e"))
        assert dav("GET", href).content == b"x"
        assert dav("DELETE", href).status_code == 204
    assert dav("GET", "/d/").status_code == 200


# --- copy and move --------------------------------------------------------------------------------


def to(path: str) -> str:
    return f"http://testserver{ROOT}{path}"


def test_trees_are_copied_and_moved_and_replace_what_is_there(dav: Dav, node: Node) -> None:
    drive = node.drive("files")
    assert dav("COPY", "/d", destination=to("/c")).status_code == 201
    assert drive.read("/c/e/f") == b"f"
    assert dav("COPY", "/d", destination=to("/c"), overwrite="F").status_code == 412
    drive.write("/c/only", b"there")
    assert dav("COPY", "/d", destination=to("/c")).status_code == 204
    assert not drive.exists("/c/only")
    assert dav("MOVE", "/a.txt", destination=to("/c/")).status_code == 204
    assert drive.read("/c") == b"0123456789"
    assert not drive.exists("/a.txt")
    assert dav("MOVE", "/d", destination=to("/c"), depth="infinity").status_code == 204
    assert drive.read("/c/e/f") == b"f"
    assert dav("COPY", "/c", destination=to("/shallow"), depth="0").status_code == 201
    assert drive.list("/shallow") == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"destination": to("/none/x")}, 409),
        ({"destination": to("/d")}, 403),
        ({"destination": to("/d/e/x")}, 403),
        ({"destination": to("")}, 403),
        ({}, 400),
        ({"destination": "nowhere"}, 400),
        ({"destination": "http://[x/y"}, 400),
        ({"destination": f"{to('/x')}?q=1"}, 400),
        ({"destination": to("/%2e%2e/x")}, 400),
        ({"destination": f"http://elsewhere{ROOT}/x"}, 502),
        ({"destination": "http://testserver/api/v1/x"}, 502),
        ({"destination": "/dlfs/own/other/x"}, 502),
        ({"destination": to("/x"), "overwrite": "maybe"}, 400),
        ({"destination": to("/x"), "depth": "1"}, 400),
    ],
)
@pytest.mark.parametrize("method", ["COPY", "MOVE"])
def test_a_destination_that_cannot_be_has_its_status(
    dav: Dav, node: Node, method: str, headers: dict[str, str], status: int
) -> None:
    before = node.drive("files").root_hash()
    assert dav(method, "/d", **headers).status_code == status
    assert node.drive("files").root_hash() == before


@pytest.mark.parametrize("method", ["COPY", "MOVE"])
def test_copy_and_move_keep_to_what_their_caller_expects(dav: Dav, node: Node, method: str) -> None:
    drive = node.drive("files")
    drive.write("/there", b"there")
    tag, other = (dav("HEAD", path).headers["etag"] for path in ("/a.txt", "/there"))
    before = drive.root_hash()
    for headers in (
        {"if_match": other},
        {"if_none_match": tag},
        {"if_none_match": "*"},
        {"if": f"([{other}])"},
        {"if": f"(Not [{tag}])"},
        {"if": f"<{to('/there')}> ([{tag}])"},
        {"if": f"<{to('/there')}> (Not [{other}])"},
        {"if": f"<{to('/new')}> ([{tag}])"},
        {"if": f"([{tag}])", "overwrite": "F"},
    ):
        assert dav(method, "/a.txt", destination=to("/there"), **headers).status_code == 412, (
            headers
        )
        assert drive.root_hash() == before
    assert dav(method, "/none", destination=to("/there"), if_match=tag).status_code == 404
    both = {"if_match": tag, "if": f"<{to('/there')}> ([{other}])"}
    assert dav(method, "/a.txt", destination=to("/there"), **both).status_code == 204
    assert drive.read("/there") == b"0123456789"
    # A directory has no tag, but it is there.
    assert dav(method, "/d", destination=to("/n"), if_match=tag).status_code == 412
    assert dav(method, "/d", destination=to("/n"), if_match="*").status_code == 201


@pytest.mark.parametrize("changed", ["/a.txt", "/there", "/new"])
@pytest.mark.parametrize("method", ["COPY", "MOVE"])
def test_a_write_between_the_look_and_a_copy_or_move_is_noticed(
    dav: Dav, node: Node, monkeypatch: pytest.MonkeyPatch, method: str, changed: str
) -> None:
    drive, call = node.drive("files"), Service.call
    drive.write("/there", b"there")
    tag = dav("HEAD", "/a.txt").headers["etag"]
    target = "/new" if changed == "/new" else "/there"

    def meddle(self: Service, request: Any, caller: Principal) -> Any:
        if isinstance(request, CopyFile | MoveFile):
            drive.write(changed, b"meanwhile")
        return call(self, request, caller)

    monkeypatch.setattr(Service, "call", meddle)
    answer = dav(method, "/a.txt", destination=to(target), **{"if": f"([{tag}])"})
    assert answer.status_code == 412
    assert drive.read(changed) == b"meanwhile"


def test_what_is_not_there_is_not_copied(dav: Dav) -> None:
    assert dav("COPY", "/none", destination=to("/x")).status_code == 404
    assert dav("MOVE", "/d/e", destination=to("/d")).status_code == 403


# --- properties -----------------------------------------------------------------------------------


def test_a_directory_is_listed_with_its_entries(dav: Dav) -> None:
    names = [f"{DAV}{one}" for one in ("resourcetype", "getcontentlength", "getcontenttype")]
    assert dav.find("", *names, depth="1") == {
        f"{ROOT}/": {names[0]: f"{DAV}collection"},
        f"{ROOT}/a.txt": {names[0]: None, names[1]: "10", names[2]: "text/plain"},
        f"{ROOT}/d/": {names[0]: f"{DAV}collection"},
    }
    assert list(dav.find("/dlfs/", depth="1")) == ["/dlfs/", "/dlfs/own/"]
    assert list(dav.find("/dlfs", depth="0")) == ["/dlfs/"]
    assert list(dav.find("/dlfs/own", depth="1")) == ["/dlfs/own/", f"{ROOT}/"]
    held = dav.find("/a.txt")[f"{ROOT}/a.txt"]
    assert held[f"{DAV}getetag"] == dav("HEAD", "/a.txt").headers["etag"]
    assert held[f"{DAV}getlastmodified"] == dav("HEAD", "/a.txt").headers["last-modified"]


@pytest.mark.parametrize("more", [-1, 0, 1, PAGE_ENTRIES + 1])
def test_a_long_directory_comes_in_pieces(
    dav: Dav, node: Node, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    drive, call = node.drive("files"), Service.call
    drive.mkdir("/long")
    names = [f"{number:05}" for number in range(PAGE_ENTRIES + more)]
    with node.batch():
        for name in names:
            node.drive("files").create_file(f"/long/{name}")
    most, pages, refused = [0], [0], [RateLimited("too many", 0.001)]

    def count(self: Service, request: Any, caller: Principal) -> Any:
        if isinstance(request, ListDirectory):
            if request.start and refused:
                raise refused.pop()  # an answer that has begun waits and goes on
            found = call(self, request, caller)
            most[0], pages[0] = max(most[0], len(found.entries)), pages[0] + 1
            return found
        return call(self, request, caller)

    monkeypatch.setattr(Service, "call", count)
    wanted = -(-len(names) // PAGE_ENTRIES)
    found = dav.find("/long", f"{DAV}getcontentlength", depth="1")
    assert list(found) == [f"{ROOT}/long/", *(f"{ROOT}/long/{name}" for name in names)]
    assert (most[0], pages[0]) == (min(PAGE_ENTRIES, len(names)), wanted)
    page = dav("GET", "/long/").text
    assert [page.count("<li>"), page.endswith("</ul>")] == [len(names), True]
    assert (most[0], pages[0]) == (min(PAGE_ENTRIES, len(names)), 2 * wanted)
    assert bool(refused) is (more <= 0)


def test_an_endless_depth_and_unknown_ones_are_refused(dav: Dav) -> None:
    for headers in ({}, {"depth": "Infinity"}):
        answer = dav("PROPFIND", "/d", **headers)
        assert answer.status_code == 403
        assert ET.fromstring(answer.content)[0].tag == f"{DAV}propfind-finite-depth"
    assert dav("PROPFIND", "/d", depth="2").status_code == 400


def test_names_alone_and_missing_properties(dav: Dav) -> None:
    body = b'<propfind xmlns="DAV:"><propname/></propfind>'
    answer = dav("PROPFIND", "/a.txt", body, depth="0")
    prop = ET.fromstring(answer.content)[0].find(f"{DAV}propstat/{DAV}prop")
    assert prop is not None
    assert f"{DAV}getetag" in [one.tag for one in prop]
    assert all(one.text is None and not len(one) for one in prop)
    body = b'<propfind xmlns="DAV:"><prop><quota/><x xmlns="u:"/></prop></propfind>'
    answer = dav("PROPFIND", "/a.txt", body, depth="0")
    stats = ET.fromstring(answer.content).findall(f"*/{DAV}propstat")
    assert [one.findtext(f"{DAV}status") for one in stats] == ["HTTP/1.1 404 Not Found"]
    assert [one.tag for one in stats[0][0]] == [f"{DAV}quota", "{u:}x"]


def patch(dav: Dav, path: str, inside: str, **headers: str) -> Any:
    body = f'<d:propertyupdate xmlns:d="DAV:">{inside}</d:propertyupdate>'
    return dav("PROPPATCH", path, body.encode(), **headers)


def test_properties_are_set_removed_and_copied(dav: Dav, node: Node) -> None:
    inside = (
        '<d:set><d:prop xml:lang="en"><a xmlns="u:">J&#246;rg &amp; <b c="1"/></a></d:prop></d:set>'
        '<d:set><d:prop><plain xmlns="">text</plain></d:prop></d:set>'
        '<d:set><d:prop><gone xmlns="u:"/></d:prop></d:set>'
        '<d:remove><d:prop><gone xmlns="u:"/></d:prop></d:remove>'
    )
    for path in ("/a.txt", "/d", ""):
        assert patch(dav, path, inside).status_code == 207
        assert dav.find(path, "{u:}a", "{u:}gone", "{}plain")[
            f"{ROOT}{path}" + "/" * (path != "/a.txt")
        ] == {"{u:}a": "{u:}b", "plain": "text"}
    assert "xml:lang=" in dav("PROPFIND", "/a.txt", depth="0").text
    assert dav("COPY", "/d", destination=to("/c")).status_code == 201
    assert "{u:}a" in dav.find("/c")[f"{ROOT}/c/"]
    assert node.drive("files").stat("/a.txt").properties["plain"] == "text"
    node.drive("files").set_properties(
        "/a.txt", {"plain": "a < b", "not a name": "x", "{u:}a": "<"}
    )
    shown = dav.find("/a.txt")[f"{ROOT}/a.txt"]
    assert (shown["plain"], shown["{u:}a"]) == ("a < b", "<")
    assert not [one for one in shown if "not" in one]


def test_what_the_service_makes_cannot_be_set_and_nothing_else_is(dav: Dav, node: Node) -> None:
    inside = "<d:set><d:prop><d:getetag>x</d:getetag><a xmlns='u:'/></d:prop></d:set>"
    answer = patch(dav, "/a.txt", inside)
    statuses = [one.text for one in ET.fromstring(answer.content).iter(f"{DAV}status")]
    assert statuses == ["HTTP/1.1 403 Forbidden", "HTTP/1.1 424 Failed Dependency"]
    assert node.drive("files").stat("/a.txt").properties == {}
    assert patch(dav, "/none", "<d:remove><d:prop><a/></d:prop></d:remove>").status_code == 404
    assert patch(dav, "/a.txt", "").status_code == 400
    many = "".join(f"<p{n}/>" for n in range(129))
    answer = patch(dav, "/a.txt", f"<d:set><d:prop>{many}</d:prop></d:set>")
    assert answer.status_code == 413
    assert node.drive("files").stat("/a.txt").properties == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<propfind", 400),
        (b'<propfind xmlns="DAV:"/>', 400),
        (b'<other xmlns="DAV:"><allprop/></other>', 400),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><propfind xmlns="DAV:"><allprop/></propfind>', 400),
        (b'<!DOCTYPE propfind SYSTEM "file:///etc/passwd"><propfind xmlns="DAV:"/>', 400),
        (b'<propfind xmlns="DAV:"><prop><x:a xmlns:x=""/></prop></propfind>', 400),
        (b"<a>" * (XML_DEPTH_MAX + 1) + b"</a>" * (XML_DEPTH_MAX + 1), 413),
        (b"<a>" + b"<b/>" * XML_ELEMENTS_MAX + b"</a>", 413),
        (
            b'<?xml version="1.0" encoding="nonsense"?><propfind xmlns="DAV:"/>',
            400,
        ),
        ('<propfind xmlns="DAV:"><allprop/></propfind>'.encode("utf-16"), 207),
    ],
)
def test_xml_of_strangers_is_read_within_bounds(dav: Dav, body: bytes, status: int) -> None:
    assert dav("PROPFIND", "/a.txt", body, depth="0").status_code == status


# --- locks ----------------------------------------------------------------------------------------


def test_a_locked_file_is_written_with_the_token_alone(dav: Dav) -> None:
    made = dav.lock("/a.txt", timeout="Second-100")
    token = made.headers["lock-token"]
    assert made.status_code == 200
    assert "Second-100" in made.text or "Second-99" in made.text
    for method, headers in (
        ("PUT", {}),
        ("DELETE", {}),
        ("MOVE", {"destination": to("/x")}),
        ("LOCK", {}),
    ):
        answer = dav(method, "/a.txt", **headers) if method != "LOCK" else dav.lock("/a.txt")
        assert answer.status_code == 423, method
        wanted = "no-conflicting-lock" if method == "LOCK" else "lock-token-submitted"
        assert ET.fromstring(answer.content)[0].tag == f"{DAV}{wanted}"
    assert patch(dav, "/a.txt", "<d:set><d:prop><a/></d:prop></d:set>").status_code == 423
    assert dav("COPY", "/d/e/f", destination=to("/a.txt")).status_code == 423
    assert dav.put("/a.txt", b"new", **{"if": f"({token})"}) == 204
    assert dav.put("/a.txt", b"x", **{"if": f"({token})", "authorization": "Bearer good"}) == 423
    assert dav("DELETE", "/d").status_code == 204
    shown = dav("PROPFIND", "/a.txt", depth="0").text
    assert token[1:-1] in shown
    assert "Jörg &amp; co" in shown
    assert dav("UNLOCK", "/a.txt", lock_token="<urn:uuid:other>").status_code == 409
    assert dav("UNLOCK", "/a.txt", lock_token="bare").status_code == 400
    assert dav("UNLOCK", "/a.txt", lock_token=token).status_code == 204
    assert dav.put("/a.txt") == 204


def test_a_lock_on_a_directory_is_on_its_members(dav: Dav) -> None:
    token = dav.lock("/d", depth="0").headers["lock-token"]
    assert dav.put("/d/new") == 423
    assert dav.put("/d/e/new") == 201
    assert dav("MKCOL", "/d/x").status_code == 423
    tagged = f"<http://testserver{ROOT}/d> ({token})"
    assert dav.put("/d/new", b"x", **{"if": tagged}) == 201
    assert dav("UNLOCK", "/d", lock_token=token).status_code == 204
    deep = dav.lock("/d").headers["lock-token"]
    assert dav.put("/d/e/new") == 423
    assert dav.lock("/d/e/f").status_code == 423
    assert deep[1:-1] in dav("PROPFIND", "/d/e", depth="1").text
    refreshed = dav("LOCK", "/d/e/f", **{"if": f"({deep})", "timeout": "Infinite"})
    assert refreshed.status_code == 200
    assert "Second-3600" in refreshed.text or "Second-3599" in refreshed.text
    assert dav("LOCK", "/d", **{"if": "(<urn:uuid:none>)"}).status_code == 412
    assert dav("LOCK", "/d").status_code == 400
    assert dav("DELETE", "/d", **{"if": f"({deep})"}).status_code == 204
    assert dav("MKCOL", "/d").status_code == 201  # the lock has gone with the directory


def test_a_lock_goes_with_what_it_is_on(dav: Dav) -> None:
    token = dav.lock("/a.txt").headers["lock-token"]
    held = {"if": f"({token})", "destination": to("/moved")}
    assert dav("MOVE", "/a.txt", **held).status_code == 201
    assert dav.put("/a.txt") == 201
    assert dav.put("/moved") == 204


def test_a_lock_on_nothing_makes_an_empty_file(dav: Dav, node: Node) -> None:
    made = dav.lock("/fresh")
    assert made.status_code == 201
    assert node.drive("files").read("/fresh") == b""
    assert dav.put("/fresh") == 423
    assert dav.lock("/none/fresh").status_code == 409
    assert dav.lock("/d/e/f", kind="shared").status_code == 200
    assert dav.lock("/d/e/f", kind="shared").status_code == 200
    assert dav.lock("/d/e/f").status_code == 423
    assert dav.lock("/d", depth="1").status_code == 400
    assert dav("LOCK", "/d", b"<lockinfo xmlns='DAV:'/>").status_code == 400


def test_lists_of_the_if_header_are_conditions(dav: Dav) -> None:
    tag = dav("HEAD", "/a.txt").headers["etag"]
    url = f"http://testserver{ROOT}/a.txt"
    for text, status in (
        (f"([{tag}])", 204),
        ('(["x"])', 412),
        ('(Not ["x"])', 204),
        ("(<DAV:no-lock>)", 412),
        ('(["x"]) (Not <DAV:no-lock>)', 204),
        (f'<{url}> (["x"])', 412),
        ("</dlfs/own/files/none> (Not <urn:x>)", 204),
        ('<http://elsewhere/x> (["x"])', 412),
        ("", 400),
        ("()", 400),
        ("(<a>", 400),
        ("(Not)", 400),
        ("(Not Not <a>)", 400),
        ("nonsense", 400),
        ("(" + "<a> " * (CONDITIONS_MAX + 1) + ")", 400),
        ("(" + "Not <a> " * CONDITIONS_MAX + ")", 204),
        ("(<" + "a" * 9_000 + ">)", 400),
    ):
        assert dav.put("/a.txt", b"0123456789", **{"if": text}) == status, text


def test_two_clients_that_lock_lose_no_count(dav: Dav, node: Node) -> None:
    node.drive("files").write("/count", b"0")

    def count() -> None:
        for _ in range(10):
            while (made := dav.lock("/count")).status_code == 423:
                pass
            held = {"if": f"({made.headers['lock-token']})"}
            number = int(dav("GET", "/count").content)
            assert dav.put("/count", b"%d" % (number + 1), **held) == 204
            dav("UNLOCK", "/count", lock_token=made.headers["lock-token"])

    threads = [threading.Thread(target=count) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert dav("GET", "/count").content == b"20"


# --- who may --------------------------------------------------------------------------------------


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


def test_the_password_of_basic_is_a_token(dav: Dav, asked: list[Credentials]) -> None:
    assert dav.put("/x", authorization=basic("good")) == 201
    assert asked[-1].headers["authorization"] == "Bearer good"
    for shown in (basic("bad"), "Basic !!", "Basic " + base64.b64encode(b"nocolon").decode()):
        answer = dav("GET", "/a.txt", authorization=shown)
        assert answer.status_code == 401
        offered = answer.headers.get_list("www-authenticate")
        assert [one.partition(" ")[0] for one in offered] == ["Bearer", "Basic"]
        assert "the credential is not valid" in answer.text
    busy = dav("GET", "/a.txt", authorization="Bearer busy")
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "7")
    assert asked[-1].origin.door == "webdav"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "MKCOL", "PROPPATCH", "COPY", "MOVE", "LOCK"])
def test_whoever_shows_nothing_may_read_and_not_write(dav: Dav, node: Node, method: str) -> None:
    before = node.drive("files").root_hash()
    path = "/new" if method == "MKCOL" else "/a.txt"
    headers = {"x_anonymous": "1", "destination": to("/y")}
    if method == "LOCK":
        answer = dav.lock(path, **headers)
    elif method == "PROPPATCH":
        answer = patch(dav, path, "<d:set><d:prop><a/></d:prop></d:set>", **headers)
    else:
        answer = dav(method, path, **headers)
    assert answer.status_code == 401
    assert node.drive("files").root_hash() == before
    assert dav("GET", "/a.txt", x_anonymous="1").status_code == 200
    assert dav("PROPFIND", "", depth="1", x_anonymous="1").status_code == 207


def test_a_drive_that_is_not_readable_looks_as_if_it_were_not_there(
    node: Node, tmp_path: Path
) -> None:
    service, policies = with_access(node, tmp_path, Policy(reading="authenticated"))
    policies.put("lattice/fs", {"r": [OTHER]})
    stranger = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
    door = WebDavDoor(service, lambda _: Principal(stranger, "token"))
    app, rest = rest_app(service, lambda _: Principal(stranger, "token"), mounts={"/dlfs": door})
    client = testclient.TestClient(app)
    texts = {client.get(f"{ROOT}/{name}").text for name in ("a.txt", "none")}
    assert len(texts) == 1
    assert client.get(f"{ROOT}/a.txt").status_code == 404
    found = client.request("PROPFIND", "/dlfs/", headers={"depth": "1"}).text
    assert "/dlfs/own/" not in found
    assert stranger in found
    door.close()
    rest.close()


def test_a_page_of_another_site_is_not_served(service: Service) -> None:
    door = WebDavDoor(service, lambda _: Principal(None, "socket"))
    app, rest = rest_app(
        service, lambda _: Principal(None, "socket"), hosts=LOCAL_HOSTS, mounts={"/dlfs": door}
    )
    client = testclient.TestClient(app, base_url="http://localhost")
    assert client.get(f"{ROOT}/a.txt").status_code == 200
    assert client.get(f"{ROOT}/a.txt", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/dlfsx").status_code == 404
    door.close()
    rest.close()


def test_options_says_what_is_done(dav: Dav) -> None:
    answer = dav("OPTIONS", "/dlfs/")
    assert answer.headers["dav"] == "1, 2"
    assert {"PROPFIND", "LOCK", "COPY"} <= set(answer.headers["allow"].split(", "))


def test_a_fault_of_ours_keeps_its_text(dav: Dav, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Service, "call", broken)
    answer = dav("GET", "/a.txt")
    assert answer.status_code == 500
    assert "secret" not in answer.text
