"""Commands done in the process: results, streams, stores, names, help, errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.service.cases import World

from datalattice.actions import ACTIONS, OfferRecords
from datalattice.cli.render import use_form
from datalattice.cli.repl.commands import REPL_COMMANDS
from datalattice.cli.repl.evaluator import Evaluator, Quit
from datalattice.cli.repl.language import BareWord
from datalattice.errors import DataLatticeError, NoSuchPath, UsageError
from datalattice.service import LocalClient

Run = Callable[[str], str]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def failures() -> list[tuple[Exception, str]]:
    return []


@pytest.fixture
def evaluator(world: World, failures: list[tuple[Exception, str]]) -> Iterator[Evaluator]:
    def failed(error: Exception, where: str) -> int:
        failures.append((error, where))
        return 2

    use_form(None)  # a command of an earlier test set another one
    made = Evaluator(LocalClient(world.service), failed)
    yield made
    made.close()
    use_form(None)


@pytest.fixture
def run(evaluator: Evaluator, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(text: str) -> str:
        capsys.readouterr()
        evaluator.run(text)
        return capsys.readouterr().out

    return run


# --- names ----------------------------------------------------------------------------------------


def test_a_command_is_named_in_full_in_two_words_or_by_a_unique_beginning(run: Run) -> None:
    for name in ("queue.range", "queue range", "queue.ra", "q.ra", "que ra"):
        assert [line.split("\t")[3] for line in run(f"{name} log").splitlines()[:2]] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queue.t log", "'queue.t' may be queue.topics, queue.truncate"),
        ("nothing", "there is no command 'nothing'; `help` lists them; `use STORE` adds"),
        ('"queue.range" log', "begins with its name"),
        ("take 3", "take is followed by a number and a stream"),
        ("take 0 queue.follow log", "number of items, 1 or more; got 0"),
        ("take x queue.follow log", "count is a whole number"),
        ("take 1 queue.range log", "take is for streams"),
        ("stop", "running: none"),
        ("graph", "graph needs a store: give store=NAME"),
        ("use nowhere", "there is no store 'nowhere'"),
        ("help nothing", "there is no command"),
        ("queue.range nothing", "nothing"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, text: str, said: str) -> None:
    with pytest.raises(DataLatticeError, match=said):
        run(text)


def test_take_of_a_command_that_is_no_stream_performs_nothing(run: Run) -> None:
    before = run("queue.range log")
    with pytest.raises(UsageError, match="take is for streams"):
        run("take 1 queue.offer log more")
    assert run("queue.range log") == before


def test_blank_lines_do_nothing_and_quit_ends(run: Run) -> None:
    assert run("") == run("# queue.range log") == run("()") == ""
    with pytest.raises(Quit):
        run("quit")


def test_a_method_with_an_underscore_in_its_name_is_found(evaluator: Evaluator, run: Run) -> None:
    run("use notes")
    assert evaluator.store is not None
    methods = evaluator.store._methods
    methods["read_all"] = methods["Get"]._replace(name="read_all")
    for text in ("read_all", "read-all", "readall", "read_"):
        (target, _), rest = evaluator.find([BareWord(text)])
        assert target is methods["read_all"]
        assert rest == ()


# --- results --------------------------------------------------------------------------------------


def test_lists_are_rows_and_other_answers_names_and_values(run: Run) -> None:
    assert run("kv.range shop") == 'set\tset\t{"$set":["x"]}\ntea\tvalue\t3\n'
    assert run("kv.get shop tea") == "key    tea\ntype   value\nvalue  3\n"
    assert run("drive.drives") == "files\n"
    assert run("drive.mkdir files /new") == "ok\n"
    assert run("kv.write shop ((key=n operation=incr))") == "1\n"
    assert run("queue.range log count=1").splitlines()[-1] == "end  2"


def test_json_is_the_document_of_rest(run: Run) -> None:
    use_form("json")
    found = json.loads(run("queue.range log count=1"))
    assert found["records"][0]["value"] == "a"
    assert (found["start"], found["end"]) == (0, 2)
    assert json.loads(run("drive.mkdir files /new")) == {}
    use_form("lines")
    assert json.loads(run("kv.get shop tea"))["value"] == 3


def test_values_cannot_move_the_cursor(run: Run, world: World) -> None:
    world.node.queue("log").offer("a\tb\x1b[2J\n")
    assert "a\\tb\\x1b[2J\\n" in run("queue.range log start=-1")


def test_an_owner_is_said_once_for_all(run: Run, evaluator: Evaluator, world: World) -> None:
    assert run(f"as {world.owner.hex()}") == f"data of {world.owner.hex()}\n"
    assert evaluator.prompt == f"lattice as {world.owner.hex()}> "
    assert run("drive.drives") == "files\n"
    run("as north")
    with pytest.raises(UsageError, match="north"):
        run("drive.drives")
    assert run("drive.drives owner=own") == "files\n"
    assert run("as") == "data of own\n"


# --- stores ---------------------------------------------------------------------------------------


def test_methods_of_the_store_in_use_are_commands(run: Run, evaluator: Evaluator) -> None:
    assert "[core:kvstore] notes" in run("use notes")
    assert evaluator.prompt == f"lattice:{evaluator.store_id.hex()[:8]}> "
    assert run('put title "Shop ping"').startswith("0x")
    assert run("GET title").startswith("value       Shop ping\n")
    assert run("put key=raw value=0x00ff") != run("put :key raw2 :value x")
    assert run("(get :key raw)").startswith("value       0x00ff\n")
    assert run("batch ((put a 1) (delete title))")
    use_form("json")
    assert json.loads(run("get raw"))["value"] == {"$blob": "00ff"}
    assert json.loads(run("get title"))["value"] is None
    for text, said in (
        ("put a b c", "takes 2 arguments: key value"),
        ("batch ((take a))", "begins with one of put, delete"),
        ("put title {1}", "JSON"),
    ):
        with pytest.raises(UsageError, match=said):
            run(text)


def test_actions_are_on_the_store_in_use(run: Run, world: World) -> None:
    run("use notes")
    assert run("stores.get_name") == "notes\n"
    assert run(f"stores.get_name id={world.child.hex()}") == "below\n"
    assert run("stores.get_name id=below") == "below\n"
    with pytest.raises(UsageError, match="id is given as id="):
        run("stores.get_name below")
    assert run("use") == "no store is in use\n"
    assert run("stores.get_name notes/below") == "below\n"
    with pytest.raises(UsageError, match="there is no command 'put'"):
        run("put a b")


def test_a_store_is_named_by_its_name_its_path_or_digits_of_its_id(
    run: Run, evaluator: Evaluator, world: World
) -> None:
    digits = world.child.hex()
    for text in ("below", "notes/below", digits, digits[:10], digits[:8].upper()):
        assert evaluator.find_store(text).id == world.child
    world.node.store("other", "kv")
    world.node.store("below", "kv", parent=world.node.store("other"))
    with pytest.raises(UsageError, match="2 stores have the name 'below'"):
        run("use below")
    with pytest.raises(NoSuchPath):
        run("use zz")


def test_the_history_of_a_store_is_drawn(run: Run) -> None:
    run("use notes")
    run("put k new")
    drawn = run("graph").splitlines()
    assert '(genesis "core:kvstore")' in drawn[0]
    assert '(data (put "k" "new"))' in drawn[-1]
    assert run("graph 1").splitlines() != drawn
    assert run("graph store=notes/below").splitlines()[0] != drawn[0]
    use_form("json")
    assert len(json.loads(run("graph 2"))) == 2
    with pytest.raises(UsageError, match="1 to 10000"):
        run("graph 0")


# --- streams --------------------------------------------------------------------------------------


def test_take_prints_so_many_items_and_goes_on(run: Run) -> None:
    lines = run("take 2 queue.follow log").splitlines()
    assert [line.rsplit("\t", 1)[1] for line in lines] == ["a", "b"]
    assert run("jobs") == ""
    use_form("json")
    assert json.loads(run("take 1 queue.follow log"))["value"] == "a"


def test_a_stream_goes_on_in_the_background(
    run: Run, evaluator: Evaluator, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = threading.Semaphore(0)
    show = evaluator._show

    def told(result: Any) -> None:
        show(result)
        seen.release()

    evaluator._show = told  # type: ignore[method-assign]
    evaluator.run("queue.follow log start=2")
    evaluator.run("use notes")
    evaluator.run("watch t")
    assert "[1] queue.follow log start=2; `stop 1` ends it" in capsys.readouterr().err
    seen.acquire()  # of `use`
    evaluator.client.call(OfferRecords(topic="log", values=("new",)))
    assert seen.acquire(timeout=60)
    assert capsys.readouterr().out.endswith("\tnew\n")
    evaluator.run("put tea green")
    assert seen.acquire(timeout=60)
    assert seen.acquire(timeout=60)
    assert "tea\tgreen" in capsys.readouterr().out
    assert [line.split("\t")[::2] for line in run("jobs").splitlines()] == [
        ["1", "on"],
        ["2", "on"],
    ]
    assert run("stop 1") == "[1] queue.follow log start=2 has ended\n"
    with pytest.raises(UsageError, match="running: 2"):
        run("stop 1")
    assert run("stop all") == "[2] watch t has ended\n"
    assert evaluator.wait() == 0


def test_a_stream_that_fails_is_told_and_ends(
    evaluator: Evaluator, failures: list[tuple[Exception, str]], world: World
) -> None:
    evaluator.run("queue.follow log start=2")
    [job] = evaluator._jobs.values()

    def fail(_item: Any) -> None:
        raise UsageError("no such item")

    job._print = fail  # type: ignore[misc]
    world.node.queue("log").offer("new")
    assert evaluator.wait() == 2
    assert [(str(error), where) for error, where in failures] == [("no such item", "[1] ")]


# --- help -----------------------------------------------------------------------------------------


def test_help_lists_every_command(run: Run) -> None:
    listed = [line.split("\t")[0] for line in run("help").splitlines()]
    assert listed == [*REPL_COMMANDS, *ACTIONS]
    run("use notes")
    found = {line.split("\t")[0]: line for line in run("help").splitlines()}
    assert found["put"] == "put\tkey value\tSet a key."
    assert [line.split("\t")[0] for line in run("help pins").splitlines()] == [
        "pins.list",
        "pins.put",
        "pins.delete",
    ]


def test_help_of_one_has_its_words_fields_and_types(run: Run) -> None:
    shown = run("help queue.offer")
    assert "Append records to a topic" in shown
    assert "values\tlist of value\t" in shown
    assert "owner\ttext\town" in shown
    assert "spans\tlist of (partition start end)" in shown
    assert "operation value field" in run("help kv.write")
    run("use notes")
    assert "Set a key." in run("help put")
    assert "id\tstore\tas in use" in run("help stores.get")
    use_form("json")
    found = json.loads(run("help queue.range"))
    assert found["kind"] == "query"
    assert {"name": "count", "type": "whole number", "default": "100"} in found["arguments"]
    for name in [*ACTIONS, *REPL_COMMANDS]:
        assert json.loads(run(f"help {name}"))["doc"], name


# --- what is kept ---------------------------------------------------------------------------------


def test_commands_with_secrets_and_what_is_no_command_are_not_kept(evaluator: Evaluator) -> None:
    for kept in (
        "queue.range log",
        "take 2 queue.follow log",
        "use anywhere",
        "stores.get anywhere",
    ):
        assert evaluator.keeps(kept), kept
    for dropped in (
        "stores.join abc",
        "stores join token=abc",
        "(stores.join :token abc)",
        "store.join abc def",
        "lattice:join abc",
        "take 1 stores.join abc",
        "",
        'queue.range "log',
    ):
        assert not evaluator.keeps(dropped), dropped
