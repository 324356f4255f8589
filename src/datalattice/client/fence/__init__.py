"""Fence: no write for an owner before a peer was asked what the owner wrote elsewhere."""

from datalattice.client.fence.asking import ask_peers
from datalattice.client.fence.rules import WITHOUT_ASKING, OwnHistory, Path, owned_paths

__all__ = ["WITHOUT_ASKING", "OwnHistory", "Path", "ask_peers", "owned_paths"]
