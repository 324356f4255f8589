"""Handlers of the actions on forks; the running node does `forks.resolve`."""

from __future__ import annotations

from datalattice.actions import (
    PAGE_MAX,
    ExportFork,
    ForkDetails,
    ForkList,
    ForkProof,
    ListForks,
    ShowFork,
)
from datalattice.service.registry import ServiceCall, handles, page


@handles(ListForks)
def list_forks(call: ServiceCall, request: ListForks) -> ForkList:
    """List the kept branches."""
    return ForkList(forks=call.node.forks().list())


@handles(ShowFork)
def show_fork(call: ServiceCall, request: ShowFork) -> ForkDetails:
    """Return a fork, and entries or records of its branch."""
    return call.node.forks().show(request.id, request.skip, page(request.count, PAGE_MAX))


@handles(ExportFork)
def export_fork(call: ServiceCall, request: ExportFork) -> ForkProof:
    """Return the proof of a fork."""
    return call.node.forks().proof(request.id)
