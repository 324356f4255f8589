"""Sync: replicas and the state machines that exchange their messages; no I/O, no clock."""

from datalattice.sync import conversation as conversation
from datalattice.sync.conduct import MALFORMED_FRAME as MALFORMED_FRAME, UNASKED as UNASKED
from datalattice.sync.conversation import GOODBYE as GOODBYE, WireProtocol as WireProtocol
from datalattice.sync.effects import (
    ASK_TIMEOUT_MS as ASK_TIMEOUT_MS,
    BROADCAST_DELAY_MS as BROADCAST_DELAY_MS,
    REQUEST_TIMEOUT_MS as REQUEST_TIMEOUT_MS,
    ROOT_SYNC_INTERVAL_MS as ROOT_SYNC_INTERVAL_MS,
    Effects as Effects,
    Note as Note,
    Pace as Pace,
    Pull as Pull,
    Standing as Standing,
)
from datalattice.sync.lattice.absorption import (
    QUOTA_EXCEEDED as QUOTA_EXCEEDED,
    UNSOUND_CELLS as UNSOUND_CELLS,
    VALUE_REFUSED as VALUE_REFUSED,
)
from datalattice.sync.lattice.charging import Charges as Charges, Sender as Sender
from datalattice.sync.lattice.conversation import (
    PING_REPLIES as PING_REPLIES,
    Dialect as Dialect,
    LatticeProtocol as LatticeProtocol,
)
from datalattice.sync.lattice.evidence import Evidence as Evidence, EvidenceLimits as EvidenceLimits
from datalattice.sync.lattice.forkproof import (
    CHAIN as CHAIN,
    FORK as FORK,
    INVALID as INVALID,
    check_proof as check_proof,
    is_descendant as is_descendant,
    write_proof as write_proof,
)
from datalattice.sync.lattice.forkrecords import (
    ForkRecord as ForkRecord,
    LogLoss as LogLoss,
    partition_of_slot as partition_of_slot,
    stored_forks as stored_forks,
)
from datalattice.sync.lattice.hosting import Hosting as Hosting
from datalattice.sync.lattice.intake import (
    CLAIMS_MAX as CLAIMS_MAX,
    DISK_LOW as DISK_LOW,
    STAGED_BYTES_MAX as STAGED_BYTES_MAX,
)
from datalattice.sync.lattice.peerviews import MADE_MAX as MADE_MAX
from datalattice.sync.lattice.policy import (
    HostingPolicy as HostingPolicy,
    UnsignedPolicy as UnsignedPolicy,
    owner_text as owner_text,
    section_name as section_name,
)
from datalattice.sync.lattice.replica import (
    IMPORTED as IMPORTED,
    LatticeReplica as LatticeReplica,
    ReplicaLimits as ReplicaLimits,
    absorb_import as absorb_import,
    is_left_out as is_left_out,
    offer_of as offer_of,
)
from datalattice.sync.lattice.starts import NodeStart as NodeStart, sign_start as sign_start
from datalattice.sync.lattice.usage import Count as Count
from datalattice.sync.partner import UNSENT_MAX as UNSENT_MAX
from datalattice.sync.replica import (
    FETCHES as FETCHES,
    Absorbed as Absorbed,
    News as News,
    Offer as Offer,
    Part as Part,
    Peer as Peer,
    Probe as Probe,
    Regard as Regard,
    Remark as Remark,
    Replica as Replica,
    Reply as Reply,
    Step as Step,
    Want as Want,
    Why as Why,
)
from datalattice.sync.replicator import Replicator as Replicator
from datalattice.sync.wants import ROUNDS_MAX as ROUNDS_MAX
