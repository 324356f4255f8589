"""Fence: no write for an owner before a peer was asked what the owner wrote elsewhere."""

from datalattice.client.fence.asking import ask_peers as ask_peers
from datalattice.client.fence.rules import (
    WITHOUT_ASKING as WITHOUT_ASKING,
    OwnHistory as OwnHistory,
    owned_paths as owned_paths,
)
