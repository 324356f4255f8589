"""Sync: replicas and what moves messages between them, without I/O; time is passed in."""

from datalattice.sync import conversation
from datalattice.sync.conduct import MALFORMED, UNASKED
from datalattice.sync.conversation import GOODBYE, WireProtocol
from datalattice.sync.effects import (
    ASK_TIMEOUT_MS,
    BROADCAST_DELAY_MS,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    Effects,
    Note,
    Pace,
    Pull,
    Standing,
)
from datalattice.sync.lattice.absorption import QUOTA_EXCEEDED, UNSOUND_CELLS, VALUE_REFUSED
from datalattice.sync.lattice.charging import Charges, Sender
from datalattice.sync.lattice.conversation import PING_REPLIES, Dialect, LatticeProtocol
from datalattice.sync.lattice.evidence import Evidence, EvidenceLimits
from datalattice.sync.lattice.forkproof import (
    CHAIN,
    FORK,
    INVALID,
    check_proof,
    is_descendant,
    write_proof,
)
from datalattice.sync.lattice.forkrecords import (
    ForkRecord,
    LogLoss,
    partition_of_slot,
    stored_forks,
)
from datalattice.sync.lattice.hosting import Hosting
from datalattice.sync.lattice.intake import CLAIMS_MAX, DISK_LOW, STAGED_BYTES_MAX
from datalattice.sync.lattice.peerviews import MADE_MAX
from datalattice.sync.lattice.policy import HostingPolicy, UnsignedPolicy, owner_text, section_name
from datalattice.sync.lattice.replica import (
    IMPORTED,
    LatticeReplica,
    ReplicaLimits,
    absorb_import,
    is_left_out,
    offer_of,
)
from datalattice.sync.lattice.starts import Start, sign_start
from datalattice.sync.lattice.usage import Count
from datalattice.sync.partner import UNSENT_MAX
from datalattice.sync.replica import (
    FETCHES,
    Absorbed,
    News,
    Offer,
    Part,
    Peer,
    Probe,
    Regard,
    Remark,
    Replica,
    Reply,
    Step,
    Want,
    Why,
)
from datalattice.sync.replicator import Replicator
from datalattice.sync.wants import ROUNDS_MAX

__all__ = [
    "ASK_TIMEOUT_MS",
    "BROADCAST_DELAY_MS",
    "CHAIN",
    "CLAIMS_MAX",
    "DISK_LOW",
    "FETCHES",
    "FORK",
    "GOODBYE",
    "IMPORTED",
    "INVALID",
    "MADE_MAX",
    "MALFORMED",
    "PING_REPLIES",
    "QUOTA_EXCEEDED",
    "REQUEST_TIMEOUT_MS",
    "ROOT_SYNC_INTERVAL_MS",
    "ROUNDS_MAX",
    "STAGED_BYTES_MAX",
    "UNASKED",
    "UNSENT_MAX",
    "UNSOUND_CELLS",
    "VALUE_REFUSED",
    "Absorbed",
    "Charges",
    "Count",
    "Dialect",
    "Effects",
    "Evidence",
    "EvidenceLimits",
    "ForkRecord",
    "Hosting",
    "HostingPolicy",
    "LatticeProtocol",
    "LatticeReplica",
    "LogLoss",
    "News",
    "Note",
    "Offer",
    "Pace",
    "Part",
    "Peer",
    "Probe",
    "Pull",
    "Regard",
    "Remark",
    "Replica",
    "ReplicaLimits",
    "Replicator",
    "Reply",
    "Sender",
    "Standing",
    "Start",
    "Step",
    "UnsignedPolicy",
    "Want",
    "Why",
    "WireProtocol",
    "absorb_import",
    "check_proof",
    "conversation",
    "is_descendant",
    "is_left_out",
    "offer_of",
    "owner_text",
    "partition_of_slot",
    "section_name",
    "sign_start",
    "stored_forks",
    "write_proof",
]
