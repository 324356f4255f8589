"""Messages: the bytes of the specification, both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given, strategies as st

from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Record,
    Set,
    Value,
    Vector,
    decode_message,
    encode,
    encode_message,
    join_cells,
    references,
    same,
    value_hash,
)
from datalattice.errors import BadFormat
from datalattice.wire import (
    EXTRA_MAX,
    PATCH_BYTES_MAX,
    PATH_KEYS_MAX,
    REQUEST_HASHES_MAX,
    Announcement,
    DataRequest,
    ErrorCode,
    Goodbye,
    LatticeMessage,
    Patched,
    Ping,
    Query,
    Result,
    Unknown,
    decode_payload,
    encode_announcement,
    encode_answer,
    encode_failure,
    encode_goodbye,
    encode_patched,
    encode_ping,
    encode_query,
    encode_request,
    encode_result,
    encode_supply,
)


def read(payload: bytes) -> LatticeMessage:
    return decode_payload(payload)[0]


def cells_of(value: Value) -> dict[bytes, bytes]:
    """Return every branch at or below a value."""
    found: dict[bytes, bytes] = {}
    _, parts = _parts(encode_message(Vector.of([value])))
    found.update(parts)
    return found


def _parts(payload: bytes) -> tuple[LatticeMessage, dict[bytes, bytes]]:
    message, parts = decode_payload(payload)
    return message, parts.encodings()


def test_bytes_of_the_specification() -> None:
    assert encode_ping(1).hex() == "8002330450494e471101"
    assert read(bytes.fromhex("8002330450494e471101")) == Ping(1)
    result = encode_result(Result(1, 0x01A1FB3F3427))
    assert result.hex() == "dd0511011601a1fb3f3427000000"
    failure = encode_failure(4, ErrorCode.TRUST, "Wrong target key")
    assert failure.hex() == "dd051104301057726f6e6720746172676574206b657933055452555354" + "0000"
    assert read(bytes.fromhex("800333024c56800083021102" + "1101")) == Announcement(
        (), Set.of([1, 2])
    )


def test_extra_elements_of_a_ping_are_kept_apart() -> None:
    assert read(encode_ping("x", Keyword("PEER"))) == Ping("x", (Keyword("PEER"),))


@pytest.mark.parametrize("path", [None, 5, "data", Keyword("data")])
def test_a_query_whose_path_is_no_vector_means_the_root(path: Value) -> None:
    assert read(encode(Vector.of([Keyword("LQ"), 7, path]))) == Query(7, ())
    assert read(encode(Vector.of([Keyword("LQ"), 7]))) == Query(7, ())


def test_a_query_keeps_path_and_extras() -> None:
    assert read(encode_query(3, [Keyword("data"), 1], 0)) == Query(3, (Keyword("data"), 1), (0,))


def test_a_value_path_that_is_no_vector_is_one_key() -> None:
    assert read(encode(Vector.of([Keyword("LV"), None, 1]))) == Announcement((), 1)
    assert read(encode(Vector.of([Keyword("LV"), "k", 1]))) == Announcement(("k",), 1)


@pytest.mark.parametrize(
    "elements",
    [
        [Keyword("PING")],
        [Keyword("LQ")],
        [Keyword("LV"), Vector.of([])],
        [Keyword("LV"), Vector.of([]), None],
        [Keyword("DR")],
        [Keyword("SR"), 7],
        ["PING", 1],
        [],
    ],
)
def test_messages_that_lack_something_are_unknown(elements: list[Value]) -> None:
    assert isinstance(read(encode(Vector.of(elements))), Unknown)


@pytest.mark.parametrize("value", [None, 5, Map.of({}), Index.of({}), Record(4, [1])])
def test_payloads_that_are_no_message_are_unknown(value: Value) -> None:
    assert isinstance(read(encode(value)), Unknown)


def test_a_result_has_five_fields_and_a_keyword_as_error() -> None:
    assert isinstance(read(encode(Record(0xD, [1, 2, None, None]))), Unknown)
    assert isinstance(read(encode(Record(0xD, [1, 2, "no", None, None]))), Unknown)
    assert read(encode_failure(None, ErrorCode.FORMAT, "x")) == Result(None, "x", Keyword("FORMAT"))


def test_goodbye() -> None:
    assert isinstance(read(encode_goodbye()), Goodbye)


def test_a_request_takes_254_hashes() -> None:
    hashes = tuple(value_hash(number) for number in range(REQUEST_HASHES_MAX))
    for count in (0, 1, 14, 15, 253, 254):
        assert read(encode_request(9, hashes[:count])) == DataRequest(9, hashes[:count])
    too_many = Vector.of([Keyword("DR"), 9, *hashes, value_hash("one more")])
    message = read(encode_message(too_many))
    assert isinstance(message, DataRequest)
    assert message.id == 9
    assert message.fault is not None
    assert "254" in message.fault


@pytest.mark.parametrize("element", [b"short", "text", None, 1, b"x" * 33])
def test_a_request_for_something_that_is_no_hash_has_a_fault(element: Value) -> None:
    message = read(encode(Vector.of([Keyword("DR"), 9, element])))
    assert isinstance(message, DataRequest)
    assert message.fault is not None


def test_a_message_that_lacks_cells_of_its_own_is_malformed() -> None:
    long_request = Vector.of([Keyword("DR"), 9, *(value_hash(n) for n in range(20))])
    with pytest.raises(BadFormat):
        read(encode(long_request))  # the prefix with the keyword is a branch


@given(st.lists(st.sampled_from(["leaf", "tiny", "deep", "absent"]), max_size=REQUEST_HASHES_MAX))
def test_a_supply_is_the_message_of_a_vector_without_what_is_below(kinds: list[str]) -> None:
    leaf: Value = Vector.of(["x" * 100, "y" * 100])
    deep: Value = Vector.of([leaf, leaf, "z" * 130])
    values: dict[str, Value] = {"leaf": leaf, "tiny": 7, "deep": deep, "absent": None}
    cells = [
        (value_hash(values[kind]), None if kind == "absent" else encode(values[kind]))
        for kind in kinds
    ]
    payload = encode_supply("id", cells)
    message, parts = _parts(payload)
    assert isinstance(message, Result)
    assert message.id == "id"
    answer = message.value
    assert isinstance(answer, Vector)
    assert len(answer) == len(kinds)
    for element, kind in zip(answer, kinds, strict=True):
        assert same(element, values[kind])
    # Exactly the cells of the answer's own vector and the requested branches.
    whole = Vector.of([values[kind] for kind in kinds])
    below_deep = set() if "leaf" in kinds else {value_hash(leaf)}
    assert parts.keys() == cells_of(whole).keys() - (below_deep if "deep" in kinds else set())


def loading(cells: Mapping[bytes, bytes]) -> Callable[[Sequence[bytes]], list[bytes | None]]:
    return lambda hashes: [cells.get(hash) for hash in hashes]


def test_an_answer_goes_breadth_first_as_far_as_the_bytes_go() -> None:
    value = Vector.of([Vector.of([f"{i}-{j}" + "p" * 60 for j in range(4)]) for i in range(300)])
    cells = cells_of(value)
    whole = encode_answer(1, value, loading(cells), 10**9)
    message, parts = _parts(whole)
    assert isinstance(message, Result)
    assert same(message.value, value)
    assert parts.keys() == cells.keys()
    root_only = encode_answer(1, value, loading(cells), 0)
    assert _parts(root_only)[1].keys() == {value_hash(value)}
    half = _parts(encode_answer(1, value, loading(cells), 20_000))[1]
    assert 0 < len(half) < len(cells)
    assert sum(map(len, half.values())) <= 20_000
    direct = set(references(encode(value)))
    assert direct <= half.keys()  # the upper level first


@pytest.mark.parametrize("room", [0, 139, 140, 1_000, 5_000, 10**9])
def test_an_answer_loads_cells_in_batches_and_few_that_have_no_room(room: int) -> None:
    value = Vector.of([Vector.of([f"{i}-{j}" + "p" * 60 for j in range(4)]) for i in range(300)])
    cells = cells_of(value)
    asked: list[int] = []

    def load_all(hashes: Sequence[bytes]) -> list[bytes | None]:
        asked.append(len(hashes))
        return [cells[hash] for hash in hashes]

    sent = len(_parts(encode_answer(1, value, load_all, room))[1])
    assert sum(asked) <= 2 * sent + 1
    assert max(asked) <= 256
    assert room < 10**9 or (sum(asked) == len(cells) and len(asked) < 12)


def test_an_answer_leaves_out_what_is_missing() -> None:
    value = Vector.of([Vector.of([f"{i}-{j}" + "p" * 60 for j in range(4)]) for i in range(40)])
    cells = cells_of(value)
    lost = references(encode(value))[-1]
    del cells[lost]
    message, parts = _parts(encode_answer(1, value, loading(cells), 10**9))
    assert isinstance(message, Result)
    assert lost not in parts


def test_an_announcement_carries_just_the_cells_it_is_given() -> None:
    value = Set.of(range(2_000))
    top = encode(value)
    payload = encode_announcement((), value, [top])
    message, parts = _parts(payload)
    assert isinstance(message, Announcement)
    assert value_hash(message.value) == value_hash(value)
    assert parts == {value_hash(value): top}
    complete = encode_message(Vector.of([Keyword("LV"), Vector.of([]), value]))
    assert same(decode_message(complete), Vector.of([Keyword("LV"), Vector.of([]), value]))


def test_a_path_has_a_thousand_keys_at_most() -> None:
    for ok in (PATH_KEYS_MAX - 1, PATH_KEYS_MAX):
        path = Vector.of(range(ok))
        found = read(encode_message(Vector.of((Keyword("LQ"), 1, path))))
        assert found == Query(1, tuple(range(ok)))
        taken = read(encode_message(Vector.of((Keyword("LV"), path, "v"))))
        assert taken == Announcement(tuple(range(ok)), "v")
    above = Vector.of(range(PATH_KEYS_MAX + 1))
    refused = read(encode_message(Vector.of((Keyword("LQ"), 1, above))))
    assert isinstance(refused, Query)
    assert refused.fault == "a path of 1001 keys, at most 1000 are followed"
    assert isinstance(read(encode_message(Vector.of((Keyword("LV"), above, "v")))), Unknown)


@pytest.mark.parametrize("count", [EXTRA_MAX - 1, EXTRA_MAX, EXTRA_MAX + 1])
def test_of_what_follows_a_request_so_much_is_looked_at(count: int) -> None:
    extra = tuple(range(count))
    assert read(encode_ping(1, *extra)) == Ping(1, extra[:EXTRA_MAX])
    assert read(encode_query(1, (), *extra)) == Query(1, (), extra[:EXTRA_MAX])


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_patch_has_a_bounded_length(more: int) -> None:
    patch = bytes(PATCH_BYTES_MAX + more)
    kind = Unknown if more > 0 else Patched
    assert isinstance(read(encode_patched(None, b"h" * 32, patch)), kind)


@pytest.mark.parametrize("kind", ["PING", "LQ", "DR", "CH"])
def test_an_id_has_to_be_here_with_all_its_cells(kind: str) -> None:
    id = Vector.of([Vector.of(["x" * 100, "y" * 100]), "z" * 130])
    whole = Vector.of((Keyword(kind), id, Vector.of([])))
    assert not isinstance(read(encode_message(whole)), Unknown)
    with pytest.raises(BadFormat, match="lacks cells of its own"):
        decode_payload(join_cells(encode(whole), [encode(id)]))


def test_an_id_of_several_cells_comes_back() -> None:
    id = Vector.of([Vector.of(["x" * 100, "y" * 100]), "z" * 130])
    value = Vector.of(["v" * 100, "w" * 100])
    cells = cells_of(value)
    for payload in (
        encode_supply(id, [(value_hash(value), encode(value))]),
        encode_answer(id, value, loading(cells), 0),
    ):
        result = read(payload)
        assert isinstance(result, Result)
        assert same(result.id, id)
        assert result.value is not None
