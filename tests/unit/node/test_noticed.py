"""Health names who did what: by key, bounded, for a while."""

from __future__ import annotations

from datalattice.node.observe import NOTICED_S, Noticed, Observer
from datalattice.sync import Note


def test_what_a_peer_did_is_counted_by_word() -> None:
    noticed = Noticed(lambda: 1.0)
    noticed.add("k", Note("malformed", "in x", "first"))
    noticed.add("k", Note("malformed", "in x", "second", 3))
    noticed.add("k", Note("not-owner", "in x", "third"))
    assert noticed.document() == {"k": {"kinds": {"malformed": 4, "not-owner": 1}, "text": "third"}}


def test_who_was_quiet_for_longest_goes_and_all_are_forgotten_in_the_end() -> None:
    now = [0.0]
    noticed = Noticed(lambda: now[0], peers_max=2)
    for name in ("a", "b", "a", "c"):
        now[0] += 1
        noticed.add(name, Note("malformed", "in x", ""))
    assert list(noticed.document()) == ["a", "c"]
    now[0] += NOTICED_S - 1
    assert list(noticed.document()) == ["c"]
    now[0] += 1
    assert noticed.document() == {}


def test_an_observer_names_peers_by_what_stays_of_them_and_leaves_out_small_things() -> None:
    observer = Observer()
    observer.note(Note("malformed", "in 10.0.0.7:99 #4", "no message"))
    observer.note(Note("timeout", "in 10.0.0.8:99 #5", "no answer"))
    assert list(observer.noticed) == ["in 10.0.0.7"]
    observer.name_of = lambda peer: f"key of {peer}"
    observer.note(Note("malformed", "x", "no message"))
    assert list(observer.noticed) == ["in 10.0.0.7", "key of x"]
