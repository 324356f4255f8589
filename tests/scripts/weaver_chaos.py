"""Run five nodes in five processes that share Weaver stores, under the faults of `chaos.py`.

    weaver_chaos.py [--seconds 600] [--topology ring|star|line|all] [--seed 1] [--folder DIR]

One node makes three stores: keys and values, a log that is a child of them, and a store from which
one node is revoked at half time. It invites its neighbours, and these invite theirs. Each node
writes to all three all the time, also while its own process is dead. At the end the nodes must hold
the same intentions and the same state, with every acknowledged write; the others' copies of the
last store must have nothing that the revoked node wrote after its revocation.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaos import CONVERGE_S, LINKS, NODES, VETERAN, Chaos, ChaosFailure, ChaosNode, main

import datalattice
from datalattice.client import Folder, write_key
from datalattice.errors import DataLatticeError
from datalattice.weaver import InviteToken, StoreHandle

FOUNDER: Final = VETERAN
REVOKED: Final = NODES - 1
KEYS, LOG, GUARDED = "keys", "log", "guarded"
CONTESTED: Final = 20
"""Keys that all nodes write to."""

AFTERWARDS: Final = 25
"""Writes of the revoked node at the end, none of which may arrive."""

SPREAD_S: Final = 2.0
WRITE_GAP_S: Final = 0.1


@dataclass(slots=True)
class StoreNode(ChaosNode):
    """A node that writes to stores. ids: of the shared stores, by name, once it has them."""

    ids: dict[str, str] = field(default_factory=dict)
    written: list[tuple[str, str, str]] = field(default_factory=list)  # store, key, value
    appended: list[str] = field(default_factory=list)

    @property
    def acknowledged_count(self) -> int:
        """How many writes returned."""
        return len(self.written) + len(self.appended)

    def open(self) -> datalattice.Node:
        """Open its folder, beside the process that may serve it."""
        return datalattice.open(self.folder)

    async def start(self) -> None:
        """Start the process; its key is in the folder first, for programs that write beside it."""
        identity = Folder(self.folder).identity_path
        if not identity.exists():
            self.folder.mkdir(exist_ok=True)
            write_key(identity, self.keys)
        await super(StoreNode, self).start()

    def write(self, stopping: threading.Event, chance: random.Random) -> None:
        """Write until told to stop; a write that returned was acknowledged."""
        with self.open() as node:
            stores = {name: node.store(id) for name, id in self.ids.items()}
            number = 0
            while not stopping.wait(chance.uniform(0, WRITE_GAP_S)):
                number += 1
                name, value = chance.choice((KEYS, GUARDED)), f"{self.number}.{number}"
                try:
                    stores[name][f"node {self.number} key {number}"] = value
                    self.written.append((name, f"node {self.number} key {number}", value))
                    stores[KEYS][f"contested {chance.randrange(CONTESTED)}"] = value
                    stores[LOG].append(value)
                    self.appended.append(value)
                except DataLatticeError:
                    self.failed_writes += 1

    def summary(self, name: str) -> tuple[int, bytes, Any]:
        """Return (intentions, fingerprint, state) of a store in its folder."""
        with self.open() as node:
            handle = node.store(self.ids[name])
            with handle.store.read() as view:
                head = view.head()
                state = list(handle) if name == LOG else dict(handle)
            return head.seq, head.fingerprint, state


class StoreChaos(Chaos):
    """A run with Weaver stores in place of queues."""

    _nodes: list[StoreNode]  # type: ignore[assignment]

    def _node(self, *parts: Any) -> StoreNode:
        return StoreNode(*parts)

    async def _share(self) -> None:
        await asyncio.to_thread(self._make_stores)
        joined = {FOUNDER}
        pairs = list(zip(LINKS[self._topology], self._links, strict=True))
        while len(joined) < NODES:
            for (dialler, dialled), link in pairs:
                if dialled in joined and dialler not in joined:
                    reached = (f"tls://127.0.0.1:{link.port}",)
                    await asyncio.to_thread(self._join, dialler, dialled, reached)
                    joined.add(dialler)
                elif dialler in joined and dialled not in joined:
                    # The inviter is connected already, so the invite needs no address.
                    await asyncio.to_thread(self._join, dialled, dialler, ())
                    joined.add(dialled)

    def _make_stores(self) -> None:
        founder = self._nodes[FOUNDER]
        with founder.open() as node:
            # The log is a child of the keys, and comes to the guests with it; the guarded store
            # has no parent, so that its revocation leaves the others alone.
            keys = node.store(KEYS, "kv")
            made = (keys, node.store(LOG, "log", parent=keys), node.store(GUARDED, "kv"))
            founder.ids = {store.name: store.id for store in made}

    def _join(self, number: int, inviter: int, reached: tuple[str, ...]) -> None:
        """Have a node join by invites with addresses that lead to the inviter."""
        guest = self._nodes[number]
        with self._nodes[inviter].open() as host, guest.open() as node:
            for name in (KEYS, GUARDED):
                token = InviteToken.from_text(host.store(self._nodes[inviter].ids[name]).invite())
                invite = replace(token, addresses=reached)
                guest.ids[name] = node.join(invite.to_text()).id
            guest.ids[LOG] = self._nodes[inviter].ids[LOG]
            began_s = time.monotonic()
            # "Child stores bootstrap by themselves."
            while LOG not in node.stores(node.store(guest.ids[KEYS])):
                if time.monotonic() - began_s > CONVERGE_S:
                    raise ChaosFailure(f"node {number} did not get the child store")
                time.sleep(0.05)

    async def _inject_faults(self) -> None:
        revoking = asyncio.ensure_future(self._revoke())
        await super()._inject_faults()
        await revoking

    async def _revoke(self) -> None:
        await asyncio.sleep(self._seconds / 2)  # with as many writes before it as after it

        def revoke() -> None:
            with self._nodes[FOUNDER].open() as node:
                guarded: StoreHandle = node.store(self._nodes[FOUNDER].ids[GUARDED])
                guarded.revoke(self._nodes[REVOKED].keys.public_key)

        await asyncio.to_thread(revoke)
        self._done["revocations"] += 1

    def _members(self, name: str) -> list[StoreNode]:
        return [node for node in self._nodes if name != GUARDED or node.number != REVOKED]

    async def _converge(self) -> float:
        began_s = time.monotonic()
        for name in (KEYS, LOG, GUARDED):
            while True:
                found = [
                    await asyncio.to_thread(node.summary, name) for node in self._members(name)
                ]
                if all(one == found[0] for one in found):
                    break
                if time.monotonic() - began_s > CONVERGE_S:
                    counts = [(count, fingerprint.hex()[:8]) for count, fingerprint, _ in found]
                    raise ChaosFailure(f"{name} differs after {CONVERGE_S} s: {counts}")
                await asyncio.sleep(0.2)
        took_s = time.monotonic() - began_s
        await asyncio.to_thread(self._write_after_revocation)
        await asyncio.sleep(SPREAD_S)
        return took_s

    def _write_after_revocation(self) -> None:
        revoked = self._nodes[REVOKED]
        with revoked.open() as node:
            guarded = node.store(revoked.ids[GUARDED])
            for number in range(AFTERWARDS):
                guarded[f"afterwards {number}"] = "must not arrive"

    def _check_stores(self) -> tuple[str, int]:
        """Check that every acknowledged write is there; return (fingerprints, intentions)."""
        total, names = 0, []
        for name in (KEYS, LOG, GUARDED):
            found = [node.summary(name) for node in self._members(name)]
            count, fingerprint, state = found[0]
            # Only the state: acks are written later, and may make the logs differ.
            if any(other != state for _, _, other in found):
                raise ChaosFailure(f"{name} differs between the folders")
            total += count
            names.append(fingerprint.hex()[:5])
            if name == LOG:
                there = set(state)
                lost = [one for node in self._nodes for one in node.appended if one not in there]
            else:
                lost = [
                    key
                    for node in self._members(name)
                    for store, key, value in node.written
                    if store == name and state.get(key) != value
                ]
            if lost:
                raise ChaosFailure(
                    f"{len(lost)} acknowledged writes of {name} are lost: {lost[:3]}"
                )
            if any(str(key).startswith("afterwards") for key in state):
                raise ChaosFailure("writes of the revoked node arrived")
        return "".join(names), total


if __name__ == "__main__":
    sys.exit(main(StoreChaos, scheme="tls"))  # stores are not spoken of over plain TCP
