"""Globs fit whole paths, and tell which directories are worth a look."""

from __future__ import annotations

import pickle

import pytest

from datalattice.pipeline.files.globs import EVERYTHING, Glob, glob_option
from datalattice.pipeline.options import Refused


def fits(pattern: str, path: str) -> bool:
    glob = Glob(pattern)
    states = glob.start
    for name in path.split("/")[1:]:
        states = glob.step(states, name)
    return glob.is_end(states)


@pytest.mark.parametrize(
    ("pattern", "path", "does"),
    [
        ("/a.txt", "/a.txt", True),
        ("a.txt", "/a.txt", True),
        ("/a.txt", "/b.txt", False),
        ("/*.txt", "/a.txt", True),
        ("/*.txt", "/x/a.txt", False),
        ("/?.txt", "/a.txt", True),
        ("/?.txt", "/ab.txt", False),
        ("/[ab].txt", "/b.txt", True),
        ("/[!ab].txt", "/b.txt", False),
        ("/**", "/a/b/c", True),
        ("/**/*.csv", "/a.csv", True),
        ("/**/*.csv", "/a/b/c.csv", True),
        ("/**/*.csv", "/a/b/c.txt", False),
        ("/a/**/z", "/a/z", True),
        ("/a/**/z", "/a/b/c/z", True),
        ("/a/**/z", "/b/z", False),
        ("/a/**/b/**/z", "/a/b/z", True),
        ("/a/**/b/**/z", "/a/x/b/y/y/z", True),
        ("/a/**/b/**/z", "/a/x/y/z", False),
        ("/*/b", "/a/b", True),
        ("/*/b", "/b", False),
        ("/A", "/a", False),
        ("/a.c", "/abc", False),
    ],
)
def test_fits(pattern: str, path: str, *, does: bool) -> None:
    assert fits(pattern, path) is does


@pytest.mark.parametrize(
    ("pattern", "path", "may"),
    [
        ("/a/*.txt", "/a", True),
        ("/a/*.txt", "/b", False),
        ("/a/*.txt", "/a/b.txt", False),
        ("/a/**", "/a/b/c/d", True),
        ("/a/**/z", "/b", False),
        ("/*/x", "/q", True),
    ],
)
def test_only_directories_that_can_hold_something_are_worth_a_look(
    pattern: str, path: str, *, may: bool
) -> None:
    glob = Glob(pattern)
    states = glob.start
    for name in path.split("/")[1:]:
        states = glob.step(states, name)
    assert glob.may_go_on(states) is may


def test_plain_ones() -> None:
    assert Glob("/a/b").is_plain
    assert Glob("/").is_plain
    assert not EVERYTHING.is_plain
    assert not Glob("/a/[b]").is_plain


def test_they_travel() -> None:
    glob = Glob("/a/**/*.csv")
    assert pickle.loads(pickle.dumps(glob)) == glob
    assert hash(glob) == hash(Glob("/a/**/*.csv"))
    assert glob != Glob("/a/*.csv")


def test_what_is_not_a_path_is_refused() -> None:
    with pytest.raises(Refused, match=r"\*\*: a name in the middle of '/a//b' is empty"):
        glob_option("/a//b")
