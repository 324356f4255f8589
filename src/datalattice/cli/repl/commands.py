"""Commands: those of the prompt beside the actions, declared as classes like them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from datalattice.protobuf import Field, Message

SECRETS: Final = frozenset({"token", "lock_tokens", "secret", "password"})
"""Fields whose values are kept nowhere."""

GRAPH: Final = 100
"""Intentions that are drawn when no number is given."""

GRAPH_MAX: Final = 10_000
"""Intentions that are drawn at once, at most."""


class ShowHelp(Message, name="repl.help"):
    """List all commands, or show one with its arguments and their types."""

    topic: Annotated[str, Field(1)] = ""


class UseStore(Message, name="repl.use"):
    """Use a Weaver store: its methods become commands, and actions on stores are on this one.

    store: its name, TEAM/NAME for a child, or first digits of its id; without it, none is used.
    """

    store: Annotated[str, Field(1)] = ""


class UseOwner(Message, name="repl.as"):
    """Read the data of an owner: a name, a key or a DID; without one, your own."""

    owner: Annotated[str, Field(1)] = ""


class TakeItems(Message, name="repl.take"):
    """Print so many items of a stream, and go on then: `take 3 queue.follow log`."""

    count: Annotated[int, Field(1, "uint32")] = 0


class ListJobs(Message, name="repl.jobs"):
    """List the streams that go on in the background."""


class StopJobs(Message, name="repl.stop"):
    """Stop a stream in the background by its number, or `all`."""

    job: Annotated[str, Field(1)] = ""


class DrawGraph(Message, name="repl.graph"):
    """Draw the operations of a store as a graph, each below those that it follows.

    chains: also what each author wrote one after the other.
    """

    count: Annotated[int, Field(1, "uint32")] = GRAPH
    chains: Annotated[bool, Field(2)] = False
    store: Annotated[str, Field(3)] = ""


class QuitPrompt(Message, name="repl.quit"):
    """End; streams in the background end, too."""


REPL_COMMANDS: Final[Mapping[str, type[Message]]] = {
    one.full_name.removeprefix("repl."): one
    for one in (
        ShowHelp,
        UseStore,
        UseOwner,
        TakeItems,
        ListJobs,
        StopJobs,
        DrawGraph,
        QuitPrompt,
    )
}
"""The commands beside the actions, with their arguments."""
