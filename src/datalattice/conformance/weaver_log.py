"""Log vectors of Weaver: clock, intentions, witness chains, ingest, DAG, frontiers, genesis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from datalattice.clock import Hlc, clamp_future, is_future, tick, update
from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_decimal,
    as_fields,
    as_hex,
    as_int,
    as_list,
    as_text,
    expect,
)
from datalattice.conformance.registry import register_titled
from datalattice.crypto import KeyPair
from datalattice.engine import MemoryEngine, ReadTxn
from datalattice.weaver import (
    LOG_TABLES,
    ZERO_HASH,
    ChainBroken,
    DagNode,
    Ingested,
    Intention,
    IntentionLog,
    IntentionRefused,
    SignedIntention,
    WitnessRecord,
    admit,
    check_chain,
    find_lca,
    frontier,
    is_ack_pending,
    is_ancestor,
    observations,
    path,
    synthetic_genesis,
    unacknowledged,
)

_NODE = KeyPair(bytes(range(32)))
"""Signs the records of logs that vectors are run in; none of them states a signature."""

_STORE = bytes(16)


class _StoppedClock:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 1_700_000_000_000


# --- clock ------------------------------------------------------------------------------------


def _hlc(value: object, name: str) -> Hlc:
    wall, counter = as_list(value, name, 2)
    return Hlc(as_int(wall, name), as_int(counter, name))


def _run_hlc(fields: Fields) -> None:
    op = fields.text("op")
    if op == "compare":
        fields.only("op", "name", "values", "expect_sorted")
        # Compared as pairs: wall time first, then the counter.
        stamps = [_hlc(each, "values") for each in fields.array("values")]
        wanted = [_hlc(each, "expect_sorted") for each in fields.array("expect_sorted")]
        expect("expect_sorted", wanted, sorted(stamps))
    elif op == "sequence":
        fields.only("op", "name", "start", "steps", "expect")
        last = _hlc(fields.need("start"), "start")
        found = []
        for step in fields.array("steps"):
            last = _stepped(last, as_fields(step, "steps"))
            found.append(last)
        expect("expect", [_hlc(each, "expect") for each in fields.array("expect")], found)
    elif op in {"tick", "update"}:
        fields.only("op", "name", "local", "received", "now", "expect")
        got = _stepped(_hlc(fields.need("local"), "local"), fields)
        expect("expect", _hlc(fields.need("expect"), "expect"), got)
    else:
        _run_drift(op, fields)


def _stepped(last: Hlc, step: Fields) -> Hlc:
    now = step.integer("now")
    if step.text("op") == "tick":
        return tick(last, now)
    return update(last, _hlc(step.need("received"), "received"), now)


def _run_drift(op: str, fields: Fields) -> None:
    fields.only("op", "name", "value", "parent", "now", "max_drift", "expect")
    value = _hlc(fields.need("value"), "value")
    now, drift = fields.integer("now"), fields.integer("max_drift")
    if op == "is_future":
        fields.expect("expect", is_future(value, now, drift))
        return
    expect("op", "clamp", op)
    parent = _hlc(fields.need("parent"), "parent")
    wanted = _hlc(fields.need("expect"), "expect")
    expect("expect", wanted, clamp_future(value, parent, now, drift))


# --- intentions -------------------------------------------------------------------------------


def _run_intention(fields: Fields) -> None:
    fields.only(
        *("name", "note", "signing_key_seed", "author", "wall_time", "counter", "store_id"),
        *("store_prev", "deps_as_given", "deps_canonical", "ops", "borsh", "borsh_len"),
        *("hash", "signature", "signed_intention_proto"),
    )
    key = KeyPair(fields.hex("signing_key_seed"))
    fields.expect("author", key.public_key)
    stamp = Hlc(as_decimal(fields.need("wall_time"), "wall_time"), fields.integer("counter"))
    given = _hashes(fields, "deps_as_given")
    store_id, prev = fields.hex("store_id"), fields.hex("store_prev")
    # The canonical form does not depend on the order given.
    built = Intention.build(key.public_key, stamp, store_id, prev, given, fields.hex("ops"))
    expect("deps_canonical", _hashes(fields, "deps_canonical"), list(built.deps))
    signed = built.sign(key)
    fields.expect("borsh", signed.borsh)
    fields.expect("borsh_len", len(signed.borsh))
    fields.expect("hash", signed.hash)
    fields.expect("signature", signed.signature)
    envelope = fields.hex("signed_intention_proto")
    expect("signed_intention_proto", envelope, signed.encode())
    # The envelope is accepted as it is.
    expect("what the envelope holds", [signed], admit([envelope], store_id))


def _hashes(fields: Fields, name: str) -> list[bytes]:
    return [as_hex(each, name) for each in fields.array(name)]


_STAGES = {"verify": "signature"}
"""Stages that the file of refusals calls by another name than the scripts do."""


def _run_refusal(fields: Fields) -> None:
    fields.only("name", "borsh", "signature", "reject_at", "why")
    borsh, signature = fields.hex("borsh"), fields.hex("signature")
    # An envelope with any signature: `SignedIntention` would refuse to hold it.
    envelope = b"".join((b"\x0a", _length(borsh), borsh, b"\x12", _length(signature), signature))
    stage = fields.text("reject_at")
    try:
        admit([envelope], borsh[44:60])  # the store's id is in the intention: bytes 44 to 60
    except IntentionRefused as refused:
        expect("reject_at", _STAGES.get(stage, stage), refused.stage)
    else:
        raise Mismatch(f"the intention should have been refused at {stage}")


def _length(data: bytes) -> bytes:
    size = len(data)
    # Base 128: sizes here need at most two bytes.
    return bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])


# --- witness chains ---------------------------------------------------------------------------


def _run_witness(fields: Fields) -> None:
    known = ("name", "node_key_seed", "node", "store_id", "records", "head", "valid")
    fields.only(*known, "break_at_seq")
    key = KeyPair(fields.hex("node_key_seed"))
    fields.expect("node", key.public_key)
    store_id = fields.hex("store_id")
    records = [
        _witness_record(as_fields(each, "records"), store_id, key)
        for each in fields.array("records")
    ]
    if fields.truth("valid"):
        # From the first record, each names the hash before it.
        end = check_chain(records, store_id, key.public_key)
        seq, content_hash = as_list(fields.need("head"), "head", 2)
        expect("head", (as_int(seq, "head"), as_hex(content_hash, "head")), tuple(end))
        return
    try:
        check_chain(records, store_id, key.public_key)
    except ChainBroken as broken:
        fields.expect("break_at_seq", broken.seq)
    else:
        raise Mismatch("the chain should have been found broken")


def _witness_record(fields: Fields, store_id: bytes, key: KeyPair) -> WitnessRecord:
    known = ("seq", "intention_hash", "wall_time", "prev_hash", "content", "content_hash")
    fields.only(*known, "signature", "record")
    record = WitnessRecord.build(
        store_id,
        fields.hex("intention_hash"),
        fields.integer("wall_time"),
        fields.hex("prev_hash"),
        key,
    )
    fields.expect("content", record.content)
    fields.expect("content_hash", record.content_hash)
    fields.expect("signature", record.signature)
    fields.expect("record", record.encode())
    return WitnessRecord.decode(record.encode())  # from its bytes, as a peer would read it


# --- ingest scripts ---------------------------------------------------------------------------


class _Script:
    """A log, and the intentions of a script by label."""

    def __init__(self, fields: Fields) -> None:
        self.store_id = fields.hex("store_id")
        self.log = IntentionLog(self.store_id, _NODE, _StoppedClock())
        self.engine = MemoryEngine(LOG_TABLES)
        self.envelopes: dict[str, bytes] = {}  # by label: scripts name intentions so
        self.labels: dict[bytes, str] = {}
        for each in fields.array("intentions"):
            listed = as_fields(each, "intentions")
            listed.only("label", "author", "hash", "store_prev", "deps", "signed_proto")
            label = listed.text("label")
            self.envelopes[label] = listed.hex("signed_proto")
            signed = SignedIntention.decode(self.envelopes[label])
            intention = signed.intention
            listed.expect("hash", signed.hash)
            listed.expect("author", intention.author)
            listed.expect("store_prev", intention.store_prev)
            expect("deps", _hashes(listed, "deps"), list(intention.deps))
            self.labels[signed.hash] = label

    def ingest(self, labels: Sequence[str]) -> Ingested:
        signed = admit([self.envelopes[label] for label in labels], self.store_id)
        with self.engine.write() as txn:
            return self.log.ingest(txn, signed)

    def check(self, fields: Fields, witnessed: str, floating: str) -> None:
        """Compare what is witnessed and what floats; check the order of records and their chain."""
        with self.engine.read() as txn:
            entries = list(self.log.scan(txn))
            waiting = [each.signed.hash for each in self.log.floating(txn)]
        expect(witnessed, sorted(fields.array(witnessed)), self._named(e.signed for e in entries))
        expect(
            floating,
            sorted(fields.array(floating)),
            sorted(self.labels[hash] for hash in waiting),
        )
        before = {ZERO_HASH}  # zeros stand for "none before"
        for entry in entries:
            intention = entry.signed.intention
            # A record stands behind everything it depends on.
            if not before.issuperset((intention.store_prev, *intention.deps)):
                raise Mismatch(f"record {entry.seq} stands before what it depends on")
            before.add(entry.signed.hash)
        for one, other in pairwise(entries):
            expect("prev_hash", one.content_hash, other.prev_hash)

    def _named(self, signed: object) -> list[str]:
        return sorted(self.labels[each.hash] for each in signed)  # type: ignore[attr-defined]


def _run_ingest(fields: Fields) -> None:
    fields.only("name", "note", "store_id", "intentions", "steps", "final", "rust_head")
    script = _Script(fields)
    for each in fields.array("steps"):
        step = as_fields(each, "steps")
        labels = [as_text(label, "batch") for label in step.array("batch")]
        if step.text("result") == "rejected":
            step.only("batch", "result", "reason")
            try:
                script.ingest(labels)
            except IntentionRefused as refused:
                step.expect("reason", refused.stage)
                continue  # the batch is refused as a whole
            raise Mismatch("the batch should have been refused")
        step.only(
            *("batch", "result", "missing_prev", "missing_condition"),
            *("witnessed_after", "floating_after"),
        )
        done = script.ingest(labels)
        step.expect("result", done.result)
        missing = [
            {"prev": each.prev.hex(), "since": each.since.hex(), "author": each.author.hex()}
            for each in done.missing
        ]
        step.expect("missing_prev", missing)
        expect("missing_condition", _hashes(step, "missing_condition"), [*done.missing_condition])
        script.check(step, "witnessed_after", "floating_after")
    final = fields.fields("final")
    final.only("witnessed", "floating", "tips", "witness_fingerprint")
    script.check(final, "witnessed", "floating")
    with script.engine.read() as txn:  # after all steps, and not on the way
        tips = {author.hex(): tip.hash.hex() for author, tip in script.log.tips(txn).items()}
        expect("tips", dict(final.fields("tips")), tips)
        fingerprint = final.hex("witness_fingerprint")
        expect("witness_fingerprint", fingerprint, script.log.head(txn).fingerprint)


# --- DAG and frontiers ------------------------------------------------------------------------


def _run_dag(fields: Fields) -> None:
    fields.only("name", "nodes", "queries")
    nodes: dict[bytes, DagNode] = {}
    for seq, each in enumerate(fields.array("nodes"), 1):
        listed = as_fields(each, "nodes")
        listed.only("id", "deps")
        deps = tuple(as_text(dep, "deps").encode() for dep in listed.array("deps"))
        name = listed.text("id").encode()
        # The files give no stamps: the order in which nodes are listed decides ties.
        nodes[name] = DagNode(name, deps, Hlc(seq, 0), seq)
    for each in fields.array("queries"):
        _query(as_fields(each, "queries"), nodes)


def _query(query: Fields, nodes: dict[bytes, DagNode]) -> None:
    op = query.text("op")
    if op == "find_lca":
        query.only("op", "a", "b", "expect")
        a, b = query.text("a"), query.text("b")
        got = find_lca(nodes.get, a.encode(), b.encode()).decode()
        expect(f"find_lca {a} {b}", query.text("expect"), got)
    elif op == "is_ancestor":
        query.only("op", "ancestor", "descendant", "expect")
        a, d = query.text("ancestor"), query.text("descendant")
        found = is_ancestor(nodes.get, a.encode(), d.encode())
        expect(f"is_ancestor {a} {d}", query.truth("expect"), found)
    else:
        expect("op", "get_path", op)
        query.only("op", "from", "to", "expect_set")
        start, to = query.text("from"), query.text("to")
        names = [hash.decode() for hash in path(nodes.get, start.encode(), to.encode())]
        expect(f"get_path {start} {to}", sorted(query.array("expect_set")), sorted(names))
        for position, name in enumerate(names):
            later = {other.encode() for other in names[position:]}
            if not later.isdisjoint(nodes[name.encode()].deps):
                raise Mismatch(f"get_path {start} {to}: {name} stands before a dependency")


def _run_frontier(fields: Fields) -> None:
    known = ("name", "self", "intentions", "author_totals", "observations", "ack_tips")
    fields.only(*known, "pending_ack")
    log = IntentionLog(_STORE, _NODE, _StoppedClock())
    engine = MemoryEngine(LOG_TABLES)
    ours: dict[bytes, bytes] = {ZERO_HASH: ZERO_HASH}
    listed = [as_fields(each, "intentions") for each in fields.array("intentions")]
    with engine.write() as txn:
        # The file gives no stamps and signatures, so these are intentions with other hashes.
        for each in listed:
            signed = _stand_in(each, ours)
            ours[each.hex("hash")] = signed.hash
            seqs = log.ingest(txn, [signed]).witnessed
            expect("witness_seq", [each.integer("witness_seq")], list(seqs))
    with engine.read() as txn:
        for each in listed:
            wanted = {as_hex(k, "frontier"): v for k, v in each.fields("frontier").items()}
            got = frontier(txn, ours[each.hex("hash")])
            expect("frontier", sorted(wanted.items()), sorted(got.items()))
        # Our hashes back to those of the file.
        _check_observations(fields, txn, {mine: theirs for theirs, mine in ours.items()})


def _stand_in(fields: Fields, ours: dict[bytes, bytes]) -> SignedIntention:
    known = ("label", "hash", "author", "store_prev", "deps", "content", "witness_seq")
    fields.only(*known, "frontier")
    intention = Intention.build(  # the place in the log stands for time
        fields.hex("author"),
        Hlc(fields.integer("witness_seq"), 0),
        _STORE,
        ours[fields.hex("store_prev")],
        [ours[dep] for dep in _hashes(fields, "deps")],
        fields.text("label").encode() if fields.truth("content") else b"",
    )
    # No signature: ingest here trusts what `admit` let through.
    return SignedIntention.of(intention.encode(), bytes(64))


def _check_observations(fields: Fields, txn: ReadTxn, theirs: dict[bytes, bytes]) -> None:
    log = IntentionLog(_STORE, _NODE, _StoppedClock())
    me = fields.hex("self")
    totals = {author.hex(): tip.contents for author, tip in log.tips(txn).items()}
    expect("author_totals", dict(fields.fields("author_totals")), totals)
    seen = [
        {"observer": each.observer.hex(), "observed": each.observed.hex(), "seen": each.seen}
        for each in observations(txn)
    ]
    fields.expect("observations", seen)
    tips = [
        {
            "author": each.author.hex(),
            "tip_hash": theirs[each.tip_hash].hex(),
            "tip_count": each.tip_count,
            "acknowledged_count": each.acknowledged_count,
        }
        for each in unacknowledged(txn, me)
    ]
    fields.expect("ack_tips", tips)
    fields.expect("pending_ack", is_ack_pending(txn, me))


def _run_synthetic_genesis(fields: Fields) -> None:
    known = ("store_id", "store_type", "key_seed", "author", "payload", "borsh", "hash")
    fields.only(*known, "signature")
    key = KeyPair(fields.hex("key_seed"))
    expect("author of key_seed", fields.hex("author"), key.public_key)
    # The same bytes on every node: made of the id and the type alone.
    signed = synthetic_genesis(fields.hex("store_id"), fields.text("store_type"))
    expect("author", key.public_key, signed.intention.author)
    fields.expect("payload", signed.intention.payload)
    fields.expect("borsh", signed.borsh)
    fields.expect("hash", signed.hash)
    fields.expect("signature", signed.signature)


register_titled("Hybrid logical clock", "weaver-hlc", _run_hlc)
register_titled("Canonical intention bytes, hash and signature", "weaver-intention", _run_intention)
register_titled("Inputs that must be refused", "weaver-intention-reject", _run_refusal)
register_titled("Witness chains", "weaver-witness", _run_witness)
register_titled("Ingest scripts", "weaver-ingest", _run_ingest)
register_titled("DAG queries over condition edges", "weaver-dag", _run_dag)
register_titled(
    "Frontiers, observations and acks (additions after the seed)", "weaver-frontier", _run_frontier
)
register_titled(
    "Deterministic genesis for stores made before genesis operations existed (addition after the "
    "seed)",
    "weaver-synthetic-genesis",
    _run_synthetic_genesis,
)
