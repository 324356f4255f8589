"""WebDAV against a model: random requests have the statuses and effects that a dict has."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import datalattice
from datalattice.service import Service
from datalattice.service.access import Principal

pytest.importorskip("starlette")
testclient = pytest.importorskip("starlette.testclient")

from datalattice.api.rest import rest_app  # noqa: E402 - only where starlette is
from datalattice.api.webdav import WEBDAV_BASE, WebDavDoor  # noqa: E402

ROOT = f"{WEBDAV_BASE}/own/files"
DAV = "{DAV:}"
AUTHOR = "{urn:x}author"

Path = tuple[str, ...]
names = st.sampled_from(["a", "b", "ü c"])
paths = st.lists(names, min_size=1, max_size=3).map(tuple)
contents = st.sampled_from([b"", b"one", b"two", b"x" * 5_000])


class WebDavModel(RuleBasedStateMachine):
    """A drive as a dict: bytes of files, None for directories; properties beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[Path, bytes | None] = {(): None}
        self.authors: dict[Path, str] = {}
        self.tags: dict[bytes, str] = {}
        self.locked: Path | None = None
        self.token = ""

    @initialize()
    def begin(self) -> None:
        self.node = datalattice.open(":memory:")
        self.node.drive("files").ensure()
        service = Service(self.node)
        self.door = WebDavDoor(service, lambda _: Principal(None, "socket"))
        app, self.rest = rest_app(
            service, lambda _: Principal(None, "socket"), mounts={WEBDAV_BASE: self.door}
        )
        self.client = testclient.TestClient(app, raise_server_exceptions=False)

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
            self.door.close()
            self.rest.close()
            self.node.close()

    def do(self, method: str, path: Path, body: bytes = b"", **headers: str) -> Any:
        url = f"{ROOT}/{'/'.join(path)}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, url, content=body, headers=named)

    # --- what a dict does ---

    def is_dir(self, path: Path) -> bool:
        return path in self.files and self.files[path] is None

    def below(self, path: Path) -> list[Path]:
        return [one for one in self.files if one[: len(path)] == path]

    def drop(self, path: Path) -> None:
        for one in self.below(path):
            del self.files[one]
            self.authors.pop(one, None)
        if self.locked is not None and self.locked[: len(path)] == path:
            self.locked = None

    def is_locked(self, *trees: Path) -> bool:
        """Return whether a write to what is at and below these places meets the lock."""
        held = self.locked
        return held is not None and any(
            one[: len(held)] == held or held[: len(one)] == one for one in trees
        )

    # --- requests ---

    @rule(path=paths, body=contents, with_token=st.booleans())
    def put(self, path: Path, body: bytes, with_token: bool) -> None:
        headers = {"if": f"(<{self.token}>) (Not <DAV:no-lock>)"} if with_token else {}
        answer = self.do("PUT", path, body, **headers)
        if self.is_dir(path):
            assert answer.status_code == 405
        elif not self.is_dir(path[:-1]):
            assert answer.status_code == 409
        elif self.is_locked(path) and not with_token:
            assert answer.status_code == 423
        else:
            assert answer.status_code == (204 if path in self.files else 201)
            self.files[path] = body
            # "Equal contents have equal tags", and others have others.
            assert self.tags.setdefault(body, answer.headers["etag"]) == answer.headers["etag"]
            assert len(set(self.tags.values())) == len(self.tags)

    @rule(path=paths, body=contents, guess=contents)
    def put_if_match(self, path: Path, body: bytes, guess: bytes) -> None:
        answer = self.do("PUT", path, body, if_match=self.tags.get(guess, '"none"'))
        if self.is_dir(path):
            assert answer.status_code == 405
        elif self.files.get(path) != guess or guess not in self.tags:
            assert answer.status_code == 412
        elif self.is_locked(path):
            assert answer.status_code == 423
        else:
            assert answer.status_code == 204
            self.files[path] = body
            self.tags[body] = answer.headers["etag"]

    @rule(path=paths)
    def mkcol(self, path: Path) -> None:
        answer = self.do("MKCOL", path)
        if path in self.files:
            assert answer.status_code == 405
        elif not self.is_dir(path[:-1]):
            assert answer.status_code == 409
        elif self.is_locked(path):
            assert answer.status_code == 423
        else:
            assert answer.status_code == 201
            self.files[path] = None

    @rule(path=paths)
    def delete(self, path: Path) -> None:
        answer = self.do("DELETE", path)
        if path not in self.files:
            assert answer.status_code == 404
        elif self.is_locked(path):
            assert answer.status_code == 423
        else:
            assert answer.status_code == 204
            self.drop(path)

    @rule(source=paths, goal=paths, move=st.booleans(), overwrite=st.booleans())
    def place(self, source: Path, goal: Path, move: bool, overwrite: bool) -> None:
        answer = self.do(
            "MOVE" if move else "COPY",
            source,
            destination=f"http://testserver{ROOT}/{'/'.join(goal)}".replace("ü c", "%C3%BC%20c"),
            overwrite="T" if overwrite else "F",
        )
        if source[: len(goal)] == goal or goal[: len(source)] == source:
            assert answer.status_code == 403
        elif source not in self.files:
            assert answer.status_code == 404
        elif goal in self.files and not overwrite:
            assert answer.status_code == 412
        elif goal not in self.files and not self.is_dir(goal[:-1]):
            assert answer.status_code == 409
        elif self.is_locked(goal) or (move and self.is_locked(source)):
            assert answer.status_code == 423
        else:
            assert answer.status_code == (204 if goal in self.files else 201)
            taken = {one[len(source) :]: self.files[one] for one in self.below(source)}
            authors = {one: self.authors.get((*source, *one)) for one in taken}
            if move:
                self.drop(source)
            for one in self.below(goal):
                self.files.pop(one)
                self.authors.pop(one, None)
            for one, body in taken.items():
                self.files[(*goal, *one)] = body
                found = authors[one]
                if found is not None:
                    self.authors[(*goal, *one)] = found

    @rule(path=paths, author=st.sampled_from(["", "Ann", "a < b & c"]), remove=st.booleans())
    def proppatch(self, path: Path, author: str, remove: bool) -> None:
        kind = "remove" if remove else "set"
        text = author.replace("&", "&amp;").replace("<", "&lt;")
        body = (
            f'<d:propertyupdate xmlns:d="DAV:"><d:{kind}><d:prop><author xmlns="urn:x">{text}'
            f"</author></d:prop></d:{kind}></d:propertyupdate>"
        )
        answer = self.do("PROPPATCH", path, body.encode())
        if path not in self.files:
            assert answer.status_code == 404
        elif self.is_locked(path) and self.locked is not None and len(path) >= len(self.locked):
            assert answer.status_code == 423
        else:
            assert answer.status_code == 207
            if remove:
                self.authors.pop(path, None)
            else:
                self.authors[path] = author

    @precondition(lambda self: self.locked is None)
    @rule(path=paths)
    def lock(self, path: Path) -> None:
        body = (
            b'<d:lockinfo xmlns:d="DAV:"><d:lockscope><d:exclusive/></d:lockscope>'
            b"<d:locktype><d:write/></d:locktype></d:lockinfo>"
        )
        answer = self.do("LOCK", path, body)
        if path not in self.files and not self.is_dir(path[:-1]):
            assert answer.status_code == 409
            return
        assert answer.status_code == (200 if path in self.files else 201)
        self.files.setdefault(path, b"")
        self.locked, self.token = path, answer.headers["lock-token"][1:-1]

    @precondition(lambda self: self.locked is not None)
    @rule()
    def unlock(self) -> None:
        assert self.locked is not None
        answer = self.do("UNLOCK", self.locked, lock_token=f"<{self.token}>")
        assert answer.status_code == 204
        self.locked = None

    @invariant()
    def drive_and_model_are_equal(self) -> None:
        if not hasattr(self, "client"):
            return
        for path, body in self.files.items():
            if body is not None:
                answer = self.do("GET", path)
                assert (answer.status_code, answer.content) == (200, body)
                continue
            answer = self.do("PROPFIND", path, depth="1")
            shown: dict[str, str | None] = {}
            for response in ET.fromstring(answer.content):
                prop = response.find(f"{DAV}propstat/{DAV}prop")
                assert prop is not None
                found = prop.find(AUTHOR)
                name = str(prop.findtext(f"{DAV}displayname"))
                shown[name] = None if found is None else found.text or ""
            own = path[-1] if path else "files"
            wanted = {
                one[-1]: self.authors.get(one)
                for one in self.files
                if len(one) == len(path) + 1 and one[: len(path)] == path
            }
            # A directory may have a member of its own name; both stand in the answer.
            assert shown.keys() == {own, *wanted}
            assert all(shown[one] == wanted[one] for one in wanted)


def test_random_requests_do_what_a_dict_does() -> None:
    # A run that fails is printed as it is: each step is a request, so shrinking takes minutes.
    steps = settings(stateful_step_count=25, phases=(Phase.generate,))
    run_state_machine_as_test(WebDavModel, settings=steps)
