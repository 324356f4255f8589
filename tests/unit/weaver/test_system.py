"""The system table: bytes, routing, events, batches, genesis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datalattice.errors import BadFormat
from datalattice.testing.stores_kit import WeaverNode, envelopes_of, exchange
from datalattice.weaver import (
    ChildStatus,
    InviteStatus,
    PeerStatus,
    PeerStrategy,
    SystemBatch,
    SystemEvent,
    SystemEventKind,
    parse_store_id,
)
from datalattice.weaver.machine import StateTables
from datalattice.weaver.null import NullMachine
from datalattice.weaver.op import Op
from datalattice.weaver.system import SystemLayer, SystemReader, app_payload, system_op
from datalattice.weaver.systemops import UniversalOp, final_changes, synthetic_genesis
from datalattice.weaver.tables import Overlay

VECTORS = Path(__file__).resolve().parents[2] / "vectors"

PEER = bytes.fromhex("e108f40d45c46d425dddee8efae0c757e99439e6bf20b2f4081f8392712774ed")
CHILD = bytes(range(16))


def vectors(name: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((VECTORS / name).read_text())["cases"]
    return found


def payload_of(batch: SystemBatch) -> bytes:
    proposal = batch.proposal(SystemReader(Overlay()))
    assert proposal is not None
    return proposal.payload


BATCHES = {
    "peer_active": SystemBatch().set_peer_status(PEER, PeerStatus.ACTIVE),
    "child_add": SystemBatch().add_child(CHILD, "notes", "core:kvstore"),
    "independent": SystemBatch().set_strategy(PeerStrategy(independent=True)),
    "invite_valid": SystemBatch().set_invite_status(
        bytes.fromhex("5fbf08af2b116ab8f7f3c14b8ec01a46ce23d290e2ebc7a752d0982d54c054f2"),
        InviteStatus.VALID,
    ),
    "batch_child_add_active": SystemBatch()
    .add_child(CHILD, "a", "")
    .set_child_status(CHILD, ChildStatus.ACTIVE),
    "store_name": SystemBatch().set_name("team"),
    "peer_name": SystemBatch().set_peer_name(PEER, "alice"),
}


@pytest.mark.parametrize("name", sorted(BATCHES))
def test_payloads_are_those_of_the_shared_vectors(name: str) -> None:
    (case,) = [case for case in vectors("weaver-proto.json") if case["name"] == name]
    assert payload_of(BATCHES[name]).hex() == case["bytes"]
    assert UniversalOp.decode(bytes.fromhex(case["bytes"])).encode().hex() == case["bytes"]


def test_the_synthetic_genesis_is_that_of_the_shared_vectors() -> None:
    for case in vectors("weaver-synthetic-genesis.json"):
        found = synthetic_genesis(bytes.fromhex(case["store_id"]), case["store_type"])
        assert found.hash.hex() == case["hash"]
        assert found.signature.hex() == case["signature"]


def test_keys_and_values_of_the_table() -> None:
    def written(batch: SystemBatch) -> dict[bytes, bytes | None]:
        op = system_op(payload_of(batch))
        assert op is not None
        return final_changes(op)

    child = b"child/00010203-0405-0607-0809-0a0b0c0d0e0f/"
    assert written(SystemBatch().add_child(CHILD, "notes", "core:kvstore")) == {
        child + b"name": b"notes",
        child + b"type": b"core:kvstore",
    }
    assert written(SystemBatch().set_child_status(CHILD, ChildStatus.ARCHIVED)) == {
        child + b"status": b"\2\0\0\0"
    }
    assert written(SystemBatch().remove_child(CHILD)) == {
        child + b"name": None,
        child + b"status": None,
        child + b"type": None,
    }
    assert written(SystemBatch().set_name("x").set_name("y")) == {b"name": b"\n\1y"}
    assert written(SystemBatch().set_peer_name(PEER, "anna")) == {
        b"peer/" + PEER.hex().encode() + b"/name": b"anna"
    }


def test_an_empty_batch_writes_nothing() -> None:
    store = WeaverNode(1).stores.create("core:nullstore")
    before = store.status().intentions
    assert store.write_system(SystemBatch()) is None
    assert store.status().intentions == before


def test_system_batch_produces_single_intention() -> None:
    store = WeaverNode(1).stores.create("kv", "notes")
    before = store.status().intentions
    batch = SystemBatch().set_name("more").set_peer_status(PEER, PeerStatus.ACTIVE)
    assert store.write_system(batch) is not None
    assert store.status().intentions == before + 1


def test_a_batch_depends_on_the_heads_of_every_key_it_writes() -> None:
    store = WeaverNode(1).stores.create("kv", "notes")
    added = store.write_system(SystemBatch().add_child(CHILD, "a", "core:kvstore"))
    status = store.write_system(SystemBatch().set_child_status(CHILD, ChildStatus.ARCHIVED))
    removed = store.write_system(SystemBatch().remove_child(CHILD))
    assert added
    assert status
    assert removed
    with store.read() as view:
        assert view.dag.intention(removed).deps == tuple(sorted((added, status)))
        assert CHILD not in view.system.children()


def test_events_say_what_changed_and_come_after_the_commit() -> None:
    store = WeaverNode(1).stores.create("kv", "notes")
    seen: list[SystemEvent] = []
    names: list[str | None] = []

    def listen(event: SystemEvent) -> None:
        seen.append(event)
        with store.read() as view:
            names.append(view.system.name())

    store.on_system(listen)
    store.write_system(SystemBatch().set_name("more").set_peer_name(PEER, "alice"))
    store.write_system(SystemBatch().set_strategy(PeerStrategy(independent=True)))
    store.write_system(SystemBatch().set_peer_status(PEER, PeerStatus.REVOKED))
    assert seen == [
        SystemEvent(SystemEventKind.STORE_NAME_UPDATED),
        SystemEvent(SystemEventKind.PEER_NAME_UPDATED, PEER),
        SystemEvent(SystemEventKind.STRATEGY_UPDATED),
        SystemEvent(SystemEventKind.PEER_UPDATED, PEER),
    ]
    assert names == ["more"] * 4


def test_a_removed_child_is_one_event() -> None:
    store = WeaverNode(1, machines=(NullMachine,)).stores.create("core:nullstore")
    seen: list[SystemEvent] = []
    store.on_system(seen.append)
    store.write_system(SystemBatch().add_child(CHILD, "a", "not:here"))
    store.write_system(SystemBatch().remove_child(CHILD))
    assert [event.kind for event in seen] == [
        SystemEventKind.CHILD_LINK_UPDATED,
        SystemEventKind.CHILD_LINK_REMOVED,
    ]
    assert {event.subject for event in seen} == {CHILD}


def test_concurrent_system_writes_give_the_same_table_on_both_nodes() -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    ours = anna.stores.create("kv", "notes")
    theirs = bert.join(ours)
    exchange(ours, theirs)
    ours.write_system(SystemBatch().set_name("from anna"))
    theirs.write_system(SystemBatch().set_name("from bert").set_peer_name(bert.key.public_key, "b"))
    exchange(ours, theirs)

    def rows(store: object) -> list[tuple[bytes, bytes | None, bool]]:
        with store.read() as view:  # type: ignore[attr-defined]
            return list(view.system.table.scan())

    assert rows(ours) == rows(theirs)
    assert [conflicted for key, _, conflicted in rows(ours) if key == b"name"] == [True]


def test_payloads_of_the_other_kind_are_empty_for_the_machine() -> None:
    app = UniversalOp(app_data=b"data").encode()
    system = payload_of(SystemBatch().set_name("x"))
    assert app_payload(app) == b"data"
    assert app_payload(system) == b""
    assert system_op(app) is None


def test_an_undecodable_envelope_is_refused_and_an_empty_one_does_nothing() -> None:
    layer = SystemLayer(NullMachine())
    tables = StateTables(Overlay(), Overlay(), Overlay())
    op = Op(bytes(32), b"\xff", stamp=(1, 0), author=PEER)  # type: ignore[arg-type]
    with pytest.raises(BadFormat):
        layer.apply(op, tables, None)  # type: ignore[arg-type]
    assert layer.apply(op.with_payload(b""), tables, None) == ()  # type: ignore[arg-type]


def test_new_store_has_genesis() -> None:
    store = WeaverNode(1).stores.create("kv")
    with store.read() as view:
        first = next(view.entries())
        assert view.genesis() == first.signed.hash
    genesis = UniversalOp.decode(first.signed.intention.payload).genesis
    assert genesis is not None
    assert genesis.store_type == "core:kvstore"


def test_of_several_genesis_operations_the_first_counts_in_any_order() -> None:
    anna, bert = WeaverNode(1), WeaverNode(2)
    ours = anna.stores.create("kv")
    theirs = bert.join(ours)
    late = synthetic_genesis(ours.id, "core:kvstore")  # stamped before all others
    theirs.ingest([late.encode()])
    theirs.ingest(envelopes_of(ours))
    ours.ingest([late.encode()])
    for store in (ours, theirs):
        with store.read() as view:
            assert view.genesis() == late.hash


def test_ids_are_read_with_and_without_hyphens() -> None:
    assert parse_store_id("00010203-0405-0607-0809-0a0b0c0d0e0f") == CHILD
