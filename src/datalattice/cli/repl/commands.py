"""Commands: the prompt's own commands, declared as classes like the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from datalattice.protobuf import Field, Message

SECRETS: Final = frozenset({"token", "lock_tokens", "secret", "password"})
"""Fields whose commands are not stored in the history."""

GRAPH: Final = 100
"""Default number of intentions that `graph` draws."""

GRAPH_MAX: Final = 10_000
"""Most intentions that `graph` draws."""


class ShowHelp(Message, name="repl.help"):
    """List all commands, or show one with its arguments and their types."""

    topic: Annotated[str, Field(1)] = ""


class UseStore(Message, name="repl.use"):
    """Use a Weaver store: its methods become commands, and actions on stores act on it.

    store: its name, PARENT/NAME for a child, or the first digits of its id; without it, use none.
    """

    store: Annotated[str, Field(1)] = ""


class UseOwner(Message, name="repl.as"):
    """Read the data of an owner, by name, key or DID; without one, your own."""

    owner: Annotated[str, Field(1)] = ""


class TakeItems(Message, name="repl.take"):
    """Print this many items of a stream, then end it: `take 3 queue.follow log`."""

    count: Annotated[int, Field(1, "uint32")] = 0


class ListJobs(Message, name="repl.jobs"):
    """List the streams in the background."""


class StopJobs(Message, name="repl.stop"):
    """Stop a stream in the background by its number, or `all`."""

    job: Annotated[str, Field(1)] = ""


class DrawGraph(Message, name="repl.graph"):
    """Draw the operations of a store as a graph, each below those that it depends on.

    chains: also connect the operations of each author.
    """

    count: Annotated[int, Field(1, "uint32")] = GRAPH
    chains: Annotated[bool, Field(2)] = False
    store: Annotated[str, Field(3)] = ""


class QuitPrompt(Message, name="repl.quit"):
    """End the prompt and all streams in the background."""


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
"""The prompt's own commands by name."""
