"""Fence: before the first write for an owner, a peer is asked what the owner wrote elsewhere."""

from datalattice.client.fence.asking import ask_peers as ask_peers
from datalattice.client.fence.rules import (
    WITHOUT_ASKING as WITHOUT_ASKING,
    OwnHistory as OwnHistory,
    owned_paths as owned_paths,
)
