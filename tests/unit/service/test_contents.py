"""Assets and their contents over REST, whatever the contents are stored in."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from tests.unit.service.cases import World
from tests.unit.service.test_suite import listening

from datalattice import actions as a
from datalattice.apps.grid import DriveBackend, FileBackend, MemoryBackend, Storage
from datalattice.client.rest import RestClient
from datalattice.errors import Corruption, LimitExceeded, NoSuchPath, UsageError
from datalattice.service import OPERATOR, Service

httpx = pytest.importorskip("httpx")

LIMIT = 3 << 20
CONTENT = bytes(hashlib.sha256(b"seed").digest() * (1 << 16)) + b"end"  # 2 MiB and some
ASSETS = "/api/v1/assets"


class Place:
    """A world whose contents are in one kind of storage, behind a door."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.world = World()
        node = self.world.node
        self.folder = folder / "contents"
        self.folder.mkdir()
        storages: dict[str, Callable[[], Storage | None]] = {
            "lattice": lambda: None,
            "file": lambda: Storage(FileBackend(str(self.folder))),
            "memory": lambda: Storage(MemoryBackend()),
            "drive": lambda: Storage(
                DriveBackend(node.drive("files"), "/full", staging=node.upload)
            ),
        }
        self.storage = storages[kind]()
        if self.storage is not None:
            self.storage.initialise()
        self.kind = kind
        self.world.service = Service(
            node, access=self.world.access, venue=self.world.venue, contents=self.storage
        )

    def asset(self, content: bytes = CONTENT, **more: str) -> bytes:
        declared = {"sha256": hashlib.sha256(content).hexdigest(), **more}
        return self.world.node.venue().register(json.dumps({"content": declared}))

    def held(self) -> list[bytes]:
        """Return the hashes of the contents that are there."""
        storage = self.storage or self.world.node.venue().storage
        return list(storage)


@pytest.fixture(params=["lattice", "file", "memory", "drive"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.world.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Place]:
    made = Place("file", tmp_path)
    yield made
    made.world.close()


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    with listening(place.world) as found:
        yield found


@pytest.fixture
def http(url: str) -> Iterator[Any]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def test_content_goes_there_and_back(place: Place, http: Any) -> None:
    id = place.asset(contentType="text/csv; charset=utf-8", fileName="Blüte 1.csv").hex()
    path = f"{ASSETS}/{id}/content"
    assert http.get(path).status_code == 404
    put = http.put(path, content=CONTENT)
    hash = hashlib.sha256(CONTENT).hexdigest()
    assert (put.status_code, put.json()) == (200, hash)
    assert http.put(path, content=CONTENT).json() == hash  # the same again changes nothing
    found = http.get(path)
    assert found.content == CONTENT
    assert found.headers["content-type"] == "text/csv; charset=utf-8"
    name = f"attachment; filename*=UTF-8''{quote('Blüte 1.csv', safe='')}"
    assert found.headers["content-disposition"] == name
    assert http.get(f"{path}?inline=true").headers["content-disposition"].startswith("inline; ")
    assert found.headers["x-content-type-options"] == "nosniff"
    head = http.head(path)
    assert (head.headers["content-length"], head.content) == (str(len(CONTENT)), b"")
    tag = found.headers["etag"]
    assert tag == head.headers["etag"] == f'"{hash}"'
    assert http.get(path, headers={"If-None-Match": tag}).status_code == 304


RANGES: list[tuple[str, int, tuple[int, int] | None]] = [
    ("bytes=0-0", 206, (0, 1)),
    ("bytes=1048575-1048576", 206, (1_048_575, 1_048_577)),  # over the edge of a piece
    ("bytes=-3", 206, (len(CONTENT) - 3, len(CONTENT))),
    (f"bytes={len(CONTENT) - 1}-{len(CONTENT) + 9}", 206, (len(CONTENT) - 1, len(CONTENT))),
    (f"bytes={len(CONTENT)}-", 416, None),
    ("bytes=0-1,3-4", 200, (0, len(CONTENT))),
    ("items=0-1", 200, (0, len(CONTENT))),
]


def test_ranges_of_content(place: Place, http: Any) -> None:
    id = place.asset()
    place.world.service.call(a.PutContent(id=id, data=CONTENT), OPERATOR)
    path, tag = f"{ASSETS}/{id.hex()}/content", f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    for asked, status, span in RANGES:
        found = http.get(path, headers={"Range": asked})
        assert found.status_code == status, asked
        if span is None:
            assert found.headers["content-range"] == f"bytes */{len(CONTENT)}"
        else:
            assert found.content == CONTENT[slice(*span)], asked
            if status == 206:
                shown = f"bytes {span[0]}-{span[1] - 1}/{len(CONTENT)}"
                assert found.headers["content-range"] == shown
    for tagged, status in ((tag, 206), ('"other"', 200)):
        found = http.get(path, headers={"Range": "bytes=1-2", "If-Range": tagged})
        assert found.status_code == status


def test_what_is_refused_leaves_nothing(place: Place, http: Any) -> None:
    id = place.asset().hex()
    plain = place.world.node.venue().register('{"name":"no content"}').hex()
    path = f"{ASSETS}/{id}/content"
    before = place.held()
    for sent, at, status in (
        (CONTENT[:-1], path, 400),
        (b"", path, 400),
        (CONTENT, f"{ASSETS}/{plain}/content", 400),
        (CONTENT, f"{ASSETS}/{'07' * 32}/content", 404),
        (CONTENT, f"{ASSETS}/07/content", 400),
    ):
        answer = http.put(at, content=sent)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"] == answer.json()["detail"]
    part = http.put(path, content=CONTENT, headers={"Content-Range": "bytes 0-1/2"})
    assert part.status_code == 400
    assert http.get(f"{ASSETS}/{plain}/content").status_code == 404
    assert http.get(path).status_code == 404
    assert place.held() == before
    assert list(place.folder.iterdir()) == []


def test_an_abandoned_upload_leaves_nothing(place: Place, url: str) -> None:
    id, closed = place.asset().hex(), threading.Event()
    begin = place.world.service.upload

    def upload(request: Any, caller: Any) -> Any:
        found = begin(request, caller)
        end = found.close

        def told() -> None:
            end()
            closed.set()

        found.close = told  # type: ignore[method-assign]
        return found

    place.world.service.upload = upload  # type: ignore[method-assign]
    at = urlsplit(url)
    with socket.create_connection((at.hostname, at.port), 60) as raw:
        head = f"PUT {ASSETS}/{id}/content HTTP/1.1\r\nhost: {at.netloc}\r\n"
        raw.sendall(f"{head}content-length: {len(CONTENT)}\r\n\r\n".encode() + CONTENT[: 1 << 20])
    assert closed.wait(60)
    assert place.held() == []
    assert list(place.folder.iterdir()) == []


def test_a_longer_content_is_refused(tmp_path: Path) -> None:
    place = Place("file", tmp_path)
    storage = Storage(FileBackend(str(place.folder)), LIMIT)
    storage.initialise()
    service = Service(place.world.node, venue=place.world.venue, contents=storage)
    for size, is_taken in ((LIMIT - 1, True), (LIMIT, True), (LIMIT + 1, False)):
        id = place.asset(content := b"x" * size)
        if is_taken:
            service.call(a.PutContent(id=id, data=content), OPERATOR)
        else:
            with pytest.raises(LimitExceeded, match=f"more than {LIMIT} bytes"):
                service.call(a.PutContent(id=id, data=content), OPERATOR)
        assert len(list(storage)) == (1 if size < LIMIT else 2)
    place.world.close()


def test_damaged_content_is_not_served(files: Place) -> None:
    id = files.asset()
    service = files.world.service
    service.call(a.PutContent(id=id, data=CONTENT), OPERATOR)
    (file,) = files.folder.iterdir()

    def damage(at: int) -> None:
        data = bytearray(CONTENT)
        data[at] ^= 1
        file.write_bytes(data)

    assert files.storage is not None
    files.storage = Storage(files.storage.backend)  # after a restart
    files.storage.initialise()
    service = Service(files.world.node, venue=files.world.venue, contents=files.storage)
    files.world.service = service
    damage(1 << 20)
    with pytest.raises(Corruption, match="is damaged"):  # the first look reads all of it
        service.stream(a.GetContent(id=id), OPERATOR)
    with listening(files.world) as url:
        answer = httpx.get(f"{url}{ASSETS}/{id.hex()}/content", timeout=60)
        assert answer.status_code == 500
        file.write_bytes(CONTENT)
        assert httpx.get(f"{url}{ASSETS}/{id.hex()}/content", timeout=60).content == CONTENT
    damage(1 << 20)  # then each piece is checked as it is read
    with service.stream(a.GetContent(id=id, count=1 << 19), OPERATOR) as stream:
        assert b"".join(one.data for one in stream) == CONTENT[: 1 << 19]
    with (
        service.stream(a.GetContent(id=id, start=1 << 20), OPERATOR) as stream,
        pytest.raises(Corruption, match=f"damaged at byte {1 << 20}"),
    ):
        list(stream)
    # Sent again, it is sound.
    service.call(a.PutContent(id=id, data=CONTENT), OPERATOR)
    with service.stream(a.GetContent(id=id), OPERATOR) as stream:
        assert b"".join(one.data for one in stream) == CONTENT


def test_content_that_was_just_sent_is_read_by_its_pieces(files: Place) -> None:
    id, service = files.asset(), files.world.service
    uneven = [CONTENT[:5], CONTENT[5 : (1 << 20) + 7], CONTENT[(1 << 20) + 7 :]]
    with service.upload(a.PutContent(id=id), OPERATOR) as upload:
        for piece in uneven:
            upload.write(piece)
        upload.finish()
    (file,) = files.folder.iterdir()
    with file.open("r+b") as damaged:
        damaged.seek(1 << 20)
        damaged.write(b"\x00")
    # Only the damaged piece is refused: the others were hashed when they came.
    with service.stream(a.GetContent(id=id, count=1 << 20), OPERATOR) as stream:
        assert b"".join(one.data for one in stream) == CONTENT[: 1 << 20]
    with service.stream(a.GetContent(id=id, start=2 << 20), OPERATOR) as stream:
        assert b"".join(one.data for one in stream) == CONTENT[2 << 20 :]
    with (
        service.stream(a.GetContent(id=id, start=1 << 20), OPERATOR) as stream,
        pytest.raises(Corruption, match=f"damaged at byte {1 << 20}"),
    ):
        list(stream)


def test_what_metadata_says_cannot_forge_a_header(files: Place) -> None:
    content = b"x"
    for media, name in (
        ("text/html\r\nx-bad: 1", "a\r\nb"),
        ("no type", "x" * 256),
        ("a/b; c=d\x00", ""),
    ):
        id = files.asset(content, contentType=media, fileName=name)
        files.world.service.call(a.PutContent(id=id, data=content), OPERATOR)
        info = files.world.service.call(a.StatContent(id=id), OPERATOR)
        assert (info.media_type, info.file_name) == ("", ""), media
    with listening(files.world) as url:
        found = httpx.get(f"{url}{ASSETS}/{id.hex()}/content", timeout=60)
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"] == "attachment"


def test_a_python_client_sends_and_gets_content(place: Place, url: str) -> None:
    id = place.asset()
    with RestClient(url) as client:
        pieces = (CONTENT[at : at + 100_000] for at in range(0, len(CONTENT), 100_000))
        assert client.upload(a.PutContent(id=id), pieces).hash == hashlib.sha256(CONTENT).digest()
        with client.stream(a.GetContent(id=id, start=7)) as found:
            assert b"".join(piece.data for piece in found) == CONTENT[7:]
        with pytest.raises(NoSuchPath):
            client.call(a.StatContent(id=b"\x07" * 32))
        with pytest.raises(UsageError):
            client.upload(a.PutContent(id=id), [b"other"])


# --- assets ---------------------------------------------------------------------------------------


def test_the_text_of_an_asset_is_kept_exactly(files: Place) -> None:
    text = ' {"name" : "\\u00e9t\u00e9",\n"n":1.0}\n'
    with listening(files.world) as url, httpx.Client(base_url=url, timeout=60) as http:
        made = http.post(
            ASSETS, content=text.encode(), headers={"Content-Type": "application/json"}
        )
        id = hashlib.sha256(text.encode()).hexdigest()
        assert (made.status_code, made.json()) == (201, id)
        assert made.headers["location"] == f"{ASSETS}/{id}"
        did = files.world.node.venue().did
        for form in (id, f"0x{id.upper()}", f"a/{id}", f"{did}/a/{id}"):
            found = http.get(f"{ASSETS}/{quote(form, safe='')}")
            assert found.content == text.encode()
            assert found.headers["content-type"] == "application/json"
        for wrong in ("[1]", "1", "", "null", '{"a":1}{}', "\ufeff{}", "{/**/}"):
            answer = http.post(ASSETS, content=wrong.encode())
            assert answer.status_code == 400, wrong
        assert http.post(ASSETS, content=b"\xff").status_code == 400
        assert http.get(f"{ASSETS}/{'07' * 32}").status_code == 404
        assert http.get(f"{ASSETS}/07").status_code == 400


def test_assets_come_in_pages(files: Place) -> None:
    venue = files.world.node.venue()
    for number in range(5):
        venue.register(json.dumps({"n": number}))
    hidden = venue.register('{"hidden": true}')
    venue.hide("assets", hidden)
    ids = [id.hex() for id in venue.assets()]
    with listening(files.world) as url, httpx.Client(base_url=url, timeout=60) as http:
        seen: list[str] = []
        while len(seen) < len(ids):
            page = http.get(ASSETS, params={"offset": len(seen), "limit": 2}).json()
            assert (page["total"], page["offset"], page["limit"]) == (len(ids), len(seen), 2)
            seen += page["items"]
        assert seen == ids
        assert http.get(ASSETS, params={"offset": 10_000}).json()["items"] == []
        for query in ("limit=0", "limit=1001", "limit=-1", "offset=-1", "offset=x"):
            assert http.get(f"{ASSETS}?{query}").status_code == 400, query
        assert http.get(f"{ASSETS}?limit=1000").json()["items"] == ids
