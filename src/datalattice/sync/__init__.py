"""Sync: messages to replica effects and back. No input and no output; time is passed in."""

from datalattice.sync.bringing import BROUGHT, bring, is_left_out, offer_of
from datalattice.sync.charging import Charges, Sender
from datalattice.sync.conduct import IGNORED_MAX, MALFORMED_MAX, REFUSED_MAX, UNASKED_MAX
from datalattice.sync.effects import (
    BROADCAST_DELAY_MS,
    REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS,
    Effects,
    Note,
    Pace,
    Pull,
    Standing,
)
from datalattice.sync.evidence import Evidence, EvidenceLimits
from datalattice.sync.forkproof import (
    CHAIN,
    FORK,
    INVALID,
    Verdict,
    check_proof,
    is_descendant,
    write_proof,
)
from datalattice.sync.forkrecords import ForkRecord, LogLoss, partition_of_slot, stored_forks
from datalattice.sync.hosting import DISK_LOW, Hosting, QuotaExceeded, owner_text, section_name
from datalattice.sync.hostingtable import Decision, HostingTable
from datalattice.sync.lattice_codec import PING_REPLIES, Dialect, LatticeCodec
from datalattice.sync.lattice_replica import (
    CLAIMS_MAX,
    MADE_MAX,
    STAGED_BYTES_MAX,
    LatticeReplica,
)
from datalattice.sync.outcome import QUOTA_EXCEEDED, REFUSED, UNSOUND
from datalattice.sync.policy import HostingPolicy, UnsignedPolicy
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
from datalattice.sync.starts import Start, sign_start
from datalattice.sync.usage import Count, Slot, Usage
from datalattice.sync.wants import ROUNDS_MAX, WANTS_MAX, WantList

__all__ = [
    "BROADCAST_DELAY_MS",
    "BROUGHT",
    "CHAIN",
    "CLAIMS_MAX",
    "DISK_LOW",
    "FORK",
    "IGNORED_MAX",
    "INVALID",
    "MADE_MAX",
    "MALFORMED_MAX",
    "PENDING_MAX",
    "PING_REPLIES",
    "QUOTA_EXCEEDED",
    "REFUSED",
    "REFUSED_MAX",
    "REQUEST_TIMEOUT_MS",
    "ROOT_SYNC_INTERVAL_MS",
    "ROUNDS_MAX",
    "STAGED_BYTES_MAX",
    "UNASKED_MAX",
    "UNSENT_MAX",
    "UNSOUND",
    "WANTS_MAX",
    "Absorbed",
    "Answered",
    "Challenged",
    "Change",
    "Charges",
    "Codec",
    "Count",
    "Decision",
    "Dialect",
    "Effects",
    "Evidence",
    "EvidenceLimits",
    "ForkRecord",
    "Heard",
    "Hosting",
    "HostingPolicy",
    "HostingTable",
    "Ignored",
    "Joined",
    "LatticeCodec",
    "LatticeReplica",
    "Left",
    "LogLoss",
    "Note",
    "Offer",
    "Offered",
    "Pace",
    "Part",
    "Probe",
    "Pull",
    "QuotaExceeded",
    "Remark",
    "Replica",
    "Replicator",
    "Replied",
    "Sender",
    "Slot",
    "Standing",
    "Start",
    "UnsignedPolicy",
    "Usage",
    "Verdict",
    "WantList",
    "Wanted",
    "bring",
    "check_proof",
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
