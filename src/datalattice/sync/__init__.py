"""Sync: messages to replica effects and back. No input and no output; time is passed in."""

from datalattice.sync.conduct import IGNORED_MAX, MALFORMED_MAX, REFUSED_MAX, UNASKED_MAX
from datalattice.sync.effects import (
    BROADCAST_DELAY_MS,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    Effects,
    Note,
    Pace,
    Standing,
)
from datalattice.sync.lattice_codec import PING_REPLIES, Dialect, LatticeCodec
from datalattice.sync.lattice_replica import (
    CLAIMS_MAX,
    MADE_MAX,
    STAGED_BYTES_MAX,
    LatticeReplica,
)
from datalattice.sync.replica import Absorbed, Change, Offer, Part, Probe, Remark, Replica
from datalattice.sync.replicator import Replicator
from datalattice.sync.session import (
    PENDING_MAX,
    UNSENT_MAX,
    Answered,
    Challenged,
    Codec,
    Heard,
    Ignored,
    Joined,
    Left,
    Offered,
    Replied,
    Wanted,
)
from datalattice.sync.wants import ROUNDS_MAX, WANTS_MAX, WantList

__all__ = [
    "BROADCAST_DELAY_MS",
    "CLAIMS_MAX",
    "IGNORED_MAX",
    "MADE_MAX",
    "MALFORMED_MAX",
    "PENDING_MAX",
    "PING_REPLIES",
    "REFUSED_MAX",
    "REQUEST_TIMEOUT_MS",
    "ROOT_SYNC_INTERVAL_MS",
    "ROUNDS_MAX",
    "STAGED_BYTES_MAX",
    "UNASKED_MAX",
    "UNSENT_MAX",
    "WANTS_MAX",
    "Absorbed",
    "Answered",
    "Challenged",
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
    "Remark",
    "Replica",
    "Replicator",
    "Replied",
    "Standing",
    "WantList",
    "Wanted",
]
