"""Revocations in flight: who the peers of a store are changes while intentions travel."""

from __future__ import annotations

from functools import partial

import pytest

from datalattice.sync import ROOT_SYNC_INTERVAL_MS, Absorbed
from datalattice.testing.dice import Dice
from datalattice.testing.mesh_kit import MeshNode, WeaverMesh
from datalattice.weaver import KvMachine, PeerStatus, PutRequest, SystemBatch

pytestmark = pytest.mark.once

OWNER = 0
STEPS = 60
ADMITTED = (PeerStatus.ACTIVE, PeerStatus.DORMANT)


class OwnedMesh(WeaverMesh):
    """Nodes that admit whom the system table of their copy names; the first node writes it."""

    def __init__(self, size: int) -> None:
        super().__init__(size, machine=KvMachine)
        self._changed: set[int] = set()
        for node in self.nodes:
            node.admits = {self.keys[OWNER]}  # as one that joined trusts its inviter
            node.replica.peers_changed()
            node.store.on_system(partial(self._note, node.number))
        for key in self.keys:
            self.set_status(key, PeerStatus.ACTIVE)
        self.nodes[OWNER].admits = set(self.keys)

    def _note(self, number: int, _event: object) -> None:
        self._changed.add(number)

    def set_status(self, key: bytes, status: PeerStatus) -> None:
        """Have the owner say what a peer may do, and push it."""
        self.nodes[OWNER].store.write_system(SystemBatch().set_peer_status(key, status))
        self.publish(OWNER)

    def carry(self) -> None:
        """Deliver frames, and have nodes look again whom they admit, as after an event."""
        super().carry()
        while self._changed:
            self._look_again(self.nodes[self._changed.pop()])
            super().carry()

    def _look_again(self, node: MeshNode) -> None:
        with node.store.read() as view:
            named = view.system.peers()
        node.admits = {key for key, peer in named.items() if peer.status in ADMITTED}
        node.replica.peers_changed()
        node.replicator.settle(Absorbed(readmits=True, changed=True), "", self.now_ms)

    def put(self, node: int, key: bytes) -> None:
        """Have a node write, and push it."""
        self.nodes[node].store.execute("Put", PutRequest(key=key, value=b"%d" % node))
        self.publish(node)


@pytest.mark.parametrize("seed", range(6))
def test_all_become_equal_once_all_are_peers_again(seed: int) -> None:
    dice = Dice(seed, "revocations")
    size = dice.between(3, 9)
    mesh = OwnedMesh(size)
    mesh.connect_all()
    loss = dice.pick((0.0, 0.1, 0.3))
    mesh.lose = lambda _sender, _receiver, _payload: dice.chance(loss)
    for _ in range(STEPS):
        other = dice.between(1, size - 1)
        if dice.chance(0.3):
            status = dice.pick((PeerStatus.REVOKED, PeerStatus.ACTIVE, PeerStatus.DORMANT))
            mesh.set_status(mesh.keys[other], status)
        elif dice.chance(0.2):
            mesh.connect(other, dice.pick([one for one in range(size) if one != other]))
        else:
            mesh.put(dice.below(size), b"key %d" % dice.below(8))
        mesh.pass_time(dice.pick((0, 5, 60, 1_500)))
    mesh.lose = lambda *_: False
    for key in mesh.keys:
        mesh.set_status(key, PeerStatus.ACTIVE)
    mesh.pass_time(4 * ROOT_SYNC_INTERVAL_MS)
    assert mesh.is_equal()


def test_a_revoked_peer_hears_nothing_that_is_written_afterwards() -> None:
    mesh = OwnedMesh(5)
    mesh.connect_all()
    assert mesh.is_equal()
    mesh.put(4, b"on its way when it is revoked")
    mesh.set_status(mesh.keys[4], PeerStatus.REVOKED)
    mesh.pass_time(500)
    before = len(mesh.nodes[4].log())
    for node in range(4):
        mesh.put(node, b"afterwards")
    mesh.pass_time(2 * ROOT_SYNC_INTERVAL_MS)
    assert mesh.is_equal(range(4))
    assert len(mesh.nodes[4].log()) == before
    mesh.set_status(mesh.keys[4], PeerStatus.ACTIVE)
    mesh.pass_time(2 * ROOT_SYNC_INTERVAL_MS)
    assert mesh.is_equal()
