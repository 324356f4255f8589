"""Grid: venues that publish assets, jobs and content, replicated by merge.

Importing this package registers the root section `:grid`. In it, `:venues did :value` is the signed
state of a venue, and `:meta` is the metadata of all assets.
"""

from __future__ import annotations

from datalattice.apps.grid.assets import (
    CONTENT_BYTES_MAX,
    asset_id,
    check_content,
    declared_hash,
    parse_asset_id,
    read_metadata,
)
from datalattice.apps.grid.authority import (
    KEEP_MS,
    DIDResolver,
    FixedResolver,
    KnownKeys,
    dids_to_resolve,
)
from datalattice.apps.grid.dids import (
    DIDUrl,
    assertion_keys,
    did_method,
    document_url,
    is_loopback,
    is_venue_did,
    may_write,
    split_did_url,
    venue_document,
)
from datalattice.apps.grid.files import DriveBackend, FileBackend
from datalattice.apps.grid.hidden import hidden_entries
from datalattice.apps.grid.jobs import (
    ACTIVE,
    INTERACTIVE,
    JOB_TIME_MAX,
    STATUSES,
    TERMINAL,
    job_status,
    job_time,
    make_job_id,
    parse_job_id,
)
from datalattice.apps.grid.lattice import (
    ASSETS,
    GRID,
    GRID_ROOT,
    GRID_SECTION,
    JOB,
    JOBS,
    JOBS_KEY,
    META,
    PLAIN_GRID,
    STORAGE,
    VENUE,
    VENUES_KEY,
    Collection,
    check_foreign,
    initial_root,
    plain_grid,
    sanitise,
    venue_lattice,
    view,
)
from datalattice.apps.grid.states import part_of
from datalattice.apps.grid.storage import (
    BadContent,
    ContentBackend,
    LatticeBackend,
    MemoryBackend,
    Storage,
)
from datalattice.apps.grid.venue import Venue

__all__ = [
    "ACTIVE",
    "ASSETS",
    "CONTENT_BYTES_MAX",
    "GRID",
    "GRID_ROOT",
    "GRID_SECTION",
    "INTERACTIVE",
    "JOB",
    "JOBS",
    "JOBS_KEY",
    "JOB_TIME_MAX",
    "KEEP_MS",
    "META",
    "PLAIN_GRID",
    "STATUSES",
    "STORAGE",
    "TERMINAL",
    "VENUE",
    "VENUES_KEY",
    "BadContent",
    "Collection",
    "ContentBackend",
    "DIDResolver",
    "DIDUrl",
    "DriveBackend",
    "FileBackend",
    "FixedResolver",
    "KnownKeys",
    "LatticeBackend",
    "MemoryBackend",
    "Storage",
    "Venue",
    "assertion_keys",
    "asset_id",
    "check_content",
    "check_foreign",
    "declared_hash",
    "did_method",
    "dids_to_resolve",
    "document_url",
    "hidden_entries",
    "initial_root",
    "is_loopback",
    "is_venue_did",
    "job_status",
    "job_time",
    "make_job_id",
    "may_write",
    "parse_asset_id",
    "parse_job_id",
    "part_of",
    "plain_grid",
    "read_metadata",
    "sanitise",
    "split_did_url",
    "venue_document",
    "venue_lattice",
    "view",
]
