"""Conversation: what one replica and one peer say to each other, in one wire protocol.

A conversation has no input and no output. Payloads of the peer go in by `receive` and come out as
events for the replicator; what the replicator says goes in by `send` and comes out as payloads. The
conversation owns all that one connection of one protocol needs to remember: ids, which answer
belongs to which request, deadlines, what the peer is able to do, and the proof of its key. It holds
no storage, and time is passed in.

One message may be several events, and what is sent may be an event at once, so both wait in order:
take `frames()` and then `events()` after each call.

An *exchange* is a number of this conversation for a comparison: positive for ours, negative for one
that the peer began. All messages of it come as `Round`, and `Ended` comes after the last of them.
An answer to a request for parts hands back the request, so the replicator keeps no table of ids.

Source: docs/design/conversation.md.
"""

from datalattice.sync.conversation.events import (
    GOODBYE,
    Answered,
    Asked,
    Bare,
    Claimed,
    Delivered,
    Ended,
    Event,
    Failed,
    Fault,
    Joined,
    Left,
    Met,
    Offered,
    Proved,
    Round,
    TwinMet,
)
from datalattice.sync.conversation.protocol import (
    Conversation,
    WireProtocol,
)
from datalattice.sync.conversation.requests import (
    BATCHES_MAX,
    CLOSED,
    LATE_MAX,
    NO_ANSWER,
    PENDING_MAX,
    Pending,
    Requests,
)
from datalattice.sync.conversation.sayings import (
    Answer,
    Compare,
    Continue,
    DemandProof,
    Deny,
    Finish,
    Greet,
    Push,
    Refuse,
    Request,
    Saying,
    TellTwin,
)

__all__ = [
    "BATCHES_MAX",
    "CLOSED",
    "GOODBYE",
    "LATE_MAX",
    "NO_ANSWER",
    "PENDING_MAX",
    "Answer",
    "Answered",
    "Asked",
    "Bare",
    "Claimed",
    "Compare",
    "Continue",
    "Conversation",
    "Delivered",
    "DemandProof",
    "Deny",
    "Ended",
    "Event",
    "Failed",
    "Fault",
    "Finish",
    "Greet",
    "Joined",
    "Left",
    "Met",
    "Offered",
    "Pending",
    "Proved",
    "Push",
    "Refuse",
    "Request",
    "Requests",
    "Round",
    "Saying",
    "TellTwin",
    "TwinMet",
    "WireProtocol",
]
