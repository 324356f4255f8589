"""Sync: messages to replica effects and back. No input and no output; time is passed in."""

from datalattice.sync.lattice_codec import PING_REPLIES, Dialect, LatticeCodec
from datalattice.sync.lattice_replica import LatticeReplica
from datalattice.sync.replica import Absorbed, Change, Offer, Part, Probe, Replica
from datalattice.sync.replicator import (
    BROADCAST_DELAY_MS,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    Effects,
    Note,
    Pace,
    Replicator,
    Standing,
)
from datalattice.sync.session import (
    MALFORMED_MAX,
    UNSENT_MAX,
    Answered,
    Codec,
    Heard,
    Ignored,
    Joined,
    Left,
    Offered,
    Replied,
    Wanted,
)
from datalattice.sync.wants import ROUNDS_MAX, WantList

__all__ = [
    "BROADCAST_DELAY_MS",
    "MALFORMED_MAX",
    "PING_REPLIES",
    "REQUEST_TIMEOUT_MS",
    "ROOT_SYNC_INTERVAL_MS",
    "ROUNDS_MAX",
    "UNSENT_MAX",
    "Absorbed",
    "Answered",
    "Change",
    "Codec",
    "Dialect",
    "Effects",
    "Heard",
    "Ignored",
    "Joined",
    "LatticeCodec",
    "LatticeReplica",
    "Left",
    "Note",
    "Offer",
    "Offered",
    "Pace",
    "Part",
    "Probe",
    "Replica",
    "Replicator",
    "Replied",
    "Standing",
    "WantList",
    "Wanted",
]
