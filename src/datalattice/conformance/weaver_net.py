"""Network vectors of Weaver: frames, invite tokens, gossip topics, reconciliation."""

from __future__ import annotations

from datalattice.conformance.checks import (
    Fields,
    Mismatch,
    as_fields,
    as_hex,
    as_list,
    expect,
)
from datalattice.conformance.registry import register_titled
from datalattice.crypto import blake3
from datalattice.errors import BadFormat, LimitExceeded
from datalattice.sync.reconcile import (
    HASH_END,
    HASH_START,
    RangeMessage,
    RangeReconciliation,
    SortedHashes,
    middle,
    reference_middle,
)
from datalattice.sync.weaver import FRAMING, PeerMessage, ReconcilePayload, topic_of
from datalattice.weaver import InviteToken, store_id_text


def _run_frame(fields: Fields) -> None:
    fields.only("name", "messages", "stream", "error")
    messages = [as_hex(each, "messages") for each in fields.array("messages")]
    stream = fields.hex("stream")
    buffer = FRAMING.buffer()
    buffer.feed(stream)
    found: list[bytes] = []
    try:
        while (payload := buffer.next_payload()) is not None:
            found.append(payload)
    except LimitExceeded:  # a length beyond the limit, before any byte of the message
        expect("error", fields.get("error"), "frame_too_long")
    else:
        expect("error", fields.get("error"), None)
        # Streams without a fault are written as they were read.
        framed = (FRAMING.head(len(message)) + message for message in messages)
        expect("stream", stream, b"".join(framed))
    expect("messages", messages, found)
    for message in messages:
        # One encoding for each message.
        expect("message, encoded again", message, PeerMessage.decode(message).encode())


def _run_token(fields: Fields) -> None:
    known = ("name", "store_id", "secret", "inviter", "protobuf", "token", "secret_hash", "valid")
    fields.only(*known, "why")
    text = fields.text("token")
    if not fields.truth("valid"):
        try:
            got = InviteToken.from_text(text)
        except BadFormat:
            return
        raise Mismatch(f"the token should have been refused, got {got!r}")
    token = InviteToken.from_text(text)
    fields.expect("store_id", token.store_id)
    fields.expect("secret", token.secret)
    fields.expect("inviter", token.inviter)
    fields.expect("secret_hash", token.secret_hash)
    fields.expect("protobuf", token.encode())
    expect("token", text, token.to_text())


def _run_topic(fields: Fields) -> None:
    fields.only("name", "store_id", "uuid", "topic")
    store_id = fields.hex("store_id")
    fields.expect("uuid", store_id_text(store_id))
    fields.expect("topic", topic_of(store_id))


def _run_midpoint(fields: Fields) -> None:
    fields.only("name", "a", "b", "mid", "rust_mid")
    # Two rules: ours rounds down, the reference's may lose a carry.
    start, end = fields.hex("a"), fields.hex("b")
    fields.expect("mid", middle(start, end))
    # Files give the reference's middle only where it differs.
    reference = fields.hex("rust_mid" if "rust_mid" in fields else "mid")
    expect("rust_mid", reference, reference_middle(start, end))


def _kind(message: RangeMessage) -> str:
    if message.fingerprint is not None:
        return "range_fingerprint"
    if message.items_request is not None:
        return "range_items_request"
    return "range_items_reply" if message.items_reply is not None else "done"


class _TranscriptSide:
    """One side of a transcript: its set, its session, and what it has learned to need."""

    def __init__(self, fields: Fields, name: str) -> None:
        self.name = name
        self.hashes = [as_hex(each, name) for each in fields.array(name)]
        held = SortedHashes(self.hashes)
        self.session = RangeReconciliation(held)
        self.needs: set[bytes] = set()
        expect(
            f"fingerprint_{name}",
            fields.hex(f"fingerprint_{name}"),
            held.fingerprint(HASH_START, HASH_END),
        )

    def check_needs(self, fields: Fields) -> None:
        wanted = {as_hex(each, "needs") for each in fields.array(f"{self.name}_needs")}
        expect(f"{self.name}_needs", wanted, self.needs)


def _run_reconcile(fields: Fields) -> None:
    sides = ("a", "b", "fingerprint_a", "fingerprint_b", "a_needs", "b_needs")
    fields.only("name", "store_id", "transcript", "stats", *sides)
    store_id = fields.hex("store_id")
    sender, receiver = _TranscriptSide(fields, "a"), _TranscriptSide(fields, "b")
    transcript = fields.array("transcript")
    payload = sender.session.start()  # the first side starts
    kinds: list[str] = []
    longest = 0
    for position, given in enumerate(transcript):
        line = as_fields(given, "transcript")
        line.only("sender", "kinds", "peer_message_blake3", "length", "peer_message")
        where = f"payload {position}"
        expect(f"{where}: sender", line.text("sender"), sender.name)
        expect(f"{where}: kinds", as_list(line["kinds"], "kinds"), [_kind(m) for m in payload])
        message = PeerMessage(reconcile_payload=ReconcilePayload(store_id, payload)).encode()
        expect(f"{where}: length", line.integer("length"), len(message))
        expect(f"{where}: hash", line.hex("peer_message_blake3"), blake3(message))
        if "peer_message" in line:
            expect(f"{where}: bytes", line.hex("peer_message"), message)
        # Payloads are written back as they came.
        expect(f"{where}: read again", PeerMessage.decode(message).encode(), message)
        kinds += map(_kind, payload)
        longest = max(longest, len(payload))
        step = receiver.session.receive(payload)
        receiver.needs |= set(step.needs)
        payload, sender, receiver = step.answer, receiver, sender  # in turn: the receiver answers
    expect("payloads behind the transcript", (), payload)  # done: nothing is left to say
    sender.check_needs(fields)
    receiver.check_needs(fields)
    _check_stats(as_fields(fields["stats"], "stats"), len(transcript), kinds, longest)


def _check_stats(stats: Fields, payloads: int, kinds: list[str], longest: int) -> None:
    stats.only("payloads", "fingerprints", "item_lists", "max_depth_messages")
    lists = kinds.count("range_items_request") + kinds.count("range_items_reply")
    stats.expect("payloads", payloads)
    stats.expect("fingerprints", kinds.count("range_fingerprint"))
    stats.expect("item_lists", lists)
    stats.expect("max_depth_messages", longest)


register_titled("Length-prefixed PeerMessage frames", "weaver-frame", _run_frame)
register_titled("Invite tokens", "weaver-token", _run_token)
register_titled(
    "Gossip topic = blake3 of 'lattice/' followed by the hyphenated lower-case uuid",
    "weaver-topic",
    _run_topic,
)
register_titled("Range midpoints (floor)", "weaver-midpoint", _run_midpoint)
register_titled("Set reconciliation in lock step, A starts", "weaver-reconcile", _run_reconcile)
