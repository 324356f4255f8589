"""Scan: strict reading of one encoding, without creating objects.

All rules by which the bytes of a cell are refused are in this file, so the modules above may trust
what they read. Work and memory are proportional to the input, and recursion is bounded: 140 bytes
can nest about 70 levels.

Source: CAD003 "Branches", "References", "VLQ counts"; docs/cells.md "Embedding", "Decoding",
    "Counts".

Length: the rules of every kind of cell, in one place.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from datalattice.crypto import sha3_256, sha3_256_many
from datalattice.errors import BadFormat
from datalattice.limits import (
    CELL_BYTES_MAX,
    CHUNK_BYTES,
    EMBEDDED_BYTES_MAX,
    HASH_BYTES,
    INDEX_DEPTH_MAX,
    INLINE_DEPTH_MAX,
    INTEGER_BYTES_MAX,
    MAP_LEAF_MAX,
    NAME_BYTES_MAX,
    STRING_BYTES_MAX,
)

BLOCK_MAX: Final = 1 << 60


def bad_encoding(why: str, pos: int) -> BadFormat:
    """Return the error for bytes that are not a canonical encoding."""
    return BadFormat(f"bad encoding at byte {pos}: {why}")


def read_vlq(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Return (count, position after it).

    Raises: BadFormat: padded, longer than 63 bits, or cut off.
    """
    if pos >= end:
        raise bad_encoding("a count is cut off", pos)
    byte: i64 = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    # "In as few bytes as it needs" (docs/cells.md "Counts"): a leading zero digit is padding.
    if byte == 0x80:
        raise bad_encoding("a count has superfluous leading bytes", pos)
    value: i64 = byte & 0x7F
    at: i64 = pos + 1
    while True:
        if at >= end:
            raise bad_encoding("a count is cut off", pos)
        # "Counts go to 2^63 - 1" (docs/cells.md "Counts"): nine digits of seven bits.
        if at - pos >= 9:
            raise bad_encoding("a count has more than 63 bits", pos)
        byte = data[at]
        at += 1
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at


def block_size(count: i64) -> i64:
    """Return the elements below each full child of a vector tree: the greatest 16**n < `count`."""
    # "B is the largest power of 16 below the count" (docs/cells.md "Vector and List").
    block: i64 = 16
    while block < BLOCK_MAX and block * 16 < count:
        block *= 16
    return block


def chunk_span(length: i64) -> i64:
    """Return the number of bytes below each full child of a blob tree of `length` bytes."""
    # "S is the smallest of 1, 16, 256, ..." (docs/cells.md "Blob and String").
    chunks: i64 = (length - 1) // CHUNK_BYTES + 1
    size: i64 = 1
    while size * 16 < chunks:
        size *= 16
    return size * CHUNK_BYTES


def bit_count(mask: i64) -> i64:
    """Return the number of set bits of a 16-bit mask."""
    n: i64 = 0
    while mask:
        mask &= mask - 1
        n += 1
    return n


def scan_top(data: bytes) -> None:
    """Raise BadFormat unless `data` is exactly the encoding of one cell."""
    # First the length: nothing of a cell that is too long is read.
    if len(data) > CELL_BYTES_MAX:
        raise bad_encoding(
            f"a cell has at most {CELL_BYTES_MAX} bytes, got {len(data)}", CELL_BYTES_MAX
        )
    end = scan(data, 0, len(data), 0, True, None)
    if end != len(data):
        raise bad_encoding("bytes after the end of the cell", end)


def skip(data: bytes, pos: i64) -> i64:
    """Return the position after the cell at `pos` of a scanned encoding."""
    tag: i64 = data[pos]
    # Nearly all are short integers and strings.
    if 0x10 <= tag <= 0x18:
        return pos + 1 + tag - 0x10
    if (tag == 0x30 or tag == 0x31) and data[pos + 1] < 0x80:
        return pos + 2 + data[pos + 1]
    at = _past_plain(data, pos, len(data), 0, False)
    return at if at >= 0 else scan(data, pos, len(data), 0, False, None)


def skip_cell(data: bytes, pos: i64) -> i64:
    """Return the position after the cell at `pos`, fast for records and chunks.

    The bytes need not be cells: the position may lie behind their end.
    Raises: BadFormat. IndexError: they end within a cell.
    """
    return skip(data, pos)


def skip_kid(data: bytes, pos: i64) -> i64:
    """Return the position after the kid at `pos` of a scanned encoding."""
    return pos + 33 if data[pos] == 0x20 else skip(data, pos)


def branch_hashes(data: bytes) -> list[bytes]:
    """Return the hashes of all references in the encoding of one cell, repeats included.

    References inside embedded children are included.
    """
    return [data[at : at + HASH_BYTES] for at in branch_places(data)]


def branch_places(data: bytes) -> list[int]:
    """Return the positions of the hashes of all references in the encoding of one cell."""
    found: list[int] = []
    scan(data, 0, len(data), 0, False, found)
    return found


def may_refer(data: bytes) -> bool:
    """Return whether the encoding of one cell may have references; False is certain.

    False also means that no signed value is embedded. Bytes that are not an encoding give either
    answer. Cost: far less than `branch_hashes` for records and chunks.
    """
    return _past_plain(data, 0, len(data), 0, True) != len(data)


def is_leaf_vector(data: bytes) -> bool:
    """Return whether a scanned cell is a vector of up to 16 plain values and references.

    False if a map or set is embedded, whose keys must be in order. Cost: one byte per short
    element.
    """
    end: i64 = len(data)
    if data[0] != 0x80 or data[1] > 16:
        return False
    at: i64 = 2
    for _ in range(data[1]):
        at = at + 33 if data[at] == 0x20 else _past_plain(data, at, end, 1, False)
        if at < 0:
            return False
    return at == end


def _past_plain(data: bytes, pos: i64, end: i64, depth: i64, keyed: bool) -> i64:
    """Return the position after a plain value without references; -1 for any other.

    keyed: whether it may have maps and sets, with keys in any order.
    """
    if pos >= end:
        return -1
    tag: i64 = data[pos]
    if tag == 0 or tag == 0xB0 or tag == 0xB1:
        return pos + 1
    if 0x10 <= tag <= 0x18:
        return pos + 1 + tag - 0x10
    if tag == 0x1D:
        return pos + 9
    if pos + 1 >= end:
        return -1
    count: i64 = data[pos + 1]
    at: i64 = pos + 2
    if tag == 0x30 or tag == 0x31:
        if count > 0x80 and at < end:
            low: i64 = data[at]
            if low >= 0x80:
                return -1
            count = ((count & 0x7F) << 7) | low
            at += 1
        # 80 begins a padded count; the full scan refuses it.
        if count > CHUNK_BYTES or count == 0x80:
            return -1
        return at + count
    if (tag == 0x84 and count == 1) or (keyed and tag == 0x82 and count <= MAP_LEAF_MAX):
        count *= 2
    elif (tag != 0x80 or count > 16) and (not keyed or tag != 0x83 or count > MAP_LEAF_MAX):
        return -1
    if depth > 3:  # records are rarely nested more deeply; others take the full scan
        return -1
    while count > 0:  # mypyc makes an object of each number of a `range`
        count -= 1
        tag = 0xFF
        if at + 1 < end:
            tag = data[at]
        # Nearly all elements of records, without a call.
        if tag == 0:
            at += 1
        elif tag >= 0x10 and tag <= 0x18:
            at += tag - 0x0F
        elif (tag == 0x30 or tag == 0x31) and data[at + 1] < 0x80:
            at += 2 + data[at + 1]
        else:
            at = _past_plain(data, at, end, depth + 1, keyed)
            if at < 0:
                return -1
    return at


def scan(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None
) -> i64:
    """Return the position after the cell at `pos`.

    strict: also check the order of map keys, one hash for each. places: collects the positions of
    the hashes of references.
    Raises: BadFormat: the bytes are not a canonical encoding.
    """
    if pos >= end:
        raise bad_encoding("a value is cut off", pos)
    # The recursion is bounded before the tag is read, whatever the tag is.
    if depth > INLINE_DEPTH_MAX:
        raise bad_encoding(f"values are nested more than {INLINE_DEPTH_MAX} levels inline", pos)
    tag: i64 = data[pos]
    if tag <= 0x1D:
        return _scan_number(data, pos, end, tag)
    if tag == 0x30 or tag == 0x31:
        return _scan_blob(data, pos, end, depth, strict, places, tag)
    if tag == 0x80 or tag == 0x81 or (tag & 0xF0) == 0xD0:
        return _scan_vector(data, pos, end, depth, strict, places)
    if tag == 0x82 or tag == 0x83:
        return _scan_map(data, pos, end, depth, strict, places, tag)
    if tag == 0x84:
        return _scan_index(data, pos, end, depth, strict, places)
    if (tag & 0xF0) == 0xB0:
        return pos + 1
    if tag == 0x33 or tag == 0x32:
        if pos + 1 >= end:
            raise bad_encoding("a name is cut off", pos)
        length: i64 = data[pos + 1]
        # A name has "one plain byte of length (1 to 128)" (docs/cells.md "Encoding table"), not a
        # count.
        if length < 1 or length > NAME_BYTES_MAX:
            raise bad_encoding(f"a name has 1 to {NAME_BYTES_MAX} bytes, got {length}", pos)
        return _within(pos + 2 + length, end, pos)
    if 0x3C <= tag <= 0x3F:
        return _scan_char(data, pos, end, tag)
    if (tag & 0xF0) == 0xE0:
        return read_vlq(data, pos + 1, end)[1]
    if (tag & 0xF0) == 0xC0:
        return _scan_kids(data, pos + 1, end, depth, strict, places, 2)
    if tag == 0x90:
        return _scan_kids(data, _within(pos + 97, end, pos), end, depth, strict, places, 1)
    if tag == 0x91:
        return _scan_kids(data, _within(pos + 65, end, pos), end, depth, strict, places, 1)
    if tag == 0x88:
        return _scan_syntax(data, pos, end, depth, strict, places)
    raise bad_encoding(f"unknown tag {tag:#04x}", pos)


def _within(at: i64, end: i64, pos: i64) -> i64:
    if at > end:
        raise bad_encoding("a value is cut off", pos)
    return at


def _scan_number(data: bytes, pos: i64, end: i64, tag: i64) -> i64:
    if tag == 0:
        return pos + 1
    if 0x10 <= tag <= 0x18:
        length: i64 = tag - 0x10
        at: i64 = _within(pos + 1 + length, end, pos)
        # "0 to 8 bytes of two's complement, as few as possible; 0 has none" (docs/cells.md
        # "Encoding table").
        if length == 1 and data[pos + 1] == 0:
            raise bad_encoding("an integer is not in its shortest form", pos)
        if length > 1:
            _check_minimal(data, pos + 1, pos)
        return at
    if tag == 0x19:
        size, start = read_vlq(data, pos + 1, end)
        # Up to 8 bytes the tags 10 to 18 are canonical, so this tag starts at 9.
        if size < 9 or size > INTEGER_BYTES_MAX:
            raise bad_encoding(f"a big integer has 9 to {INTEGER_BYTES_MAX} bytes, got {size}", pos)
        at = _within(start + size, end, pos)
        _check_minimal(data, start, pos)
        return at
    if tag == 0x1D:
        return _within(pos + 9, end, pos)
    raise bad_encoding(f"unknown tag {tag:#04x}", pos)


def _check_minimal(data: bytes, start: i64, pos: i64) -> None:
    first: i64 = data[start]
    second: i64 = data[start + 1]
    # A first byte that only repeats the sign of the second can be left out.
    if (first == 0 and second < 0x80) or (first == 0xFF and second >= 0x80):
        raise bad_encoding("an integer is not in its shortest form", pos)


def _scan_char(data: bytes, pos: i64, end: i64, tag: i64) -> i64:
    length: i64 = tag - 0x3C + 1
    at: i64 = _within(pos + 1 + length, end, pos)
    code: i64 = 0
    for i in range(length):
        code = (code << 8) | data[pos + 1 + i]
    if length > 1 and data[pos + 1] == 0:
        raise bad_encoding("a character is not in its shortest form", pos)
    # Surrogates are legal: "some values are strange but valid, and are written again unchanged"
    # (docs/cells.md "Decoding").
    if code > 0x10FFFF:
        raise bad_encoding(f"a character is at most 0x10ffff, got {code:#x}", pos)
    return at


def _scan_blob(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None, tag: i64
) -> i64:
    length, at = read_vlq(data, pos + 1, end)
    if length <= CHUNK_BYTES:
        return _within(at + length, end, pos)
    # "A String has at most 2^31 - 1 bytes" (docs/cells.md "Blob and String"); a Blob has no such
    # bound.
    if tag == 0x30 and length > STRING_BYTES_MAX:
        raise bad_encoding(f"a string has at most {STRING_BYTES_MAX} bytes, got {length}", pos)
    span: i64 = chunk_span(length)
    kids: i64 = (length - 1) // span + 1
    for _ in range(kids):
        if at < end and data[at] == 0:
            raise bad_encoding("a blob chunk is nil", at)
        at = _scan_kids(data, at, end, depth, strict, places, 1)
    return at


def _scan_vector(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None
) -> i64:
    count, at = read_vlq(data, pos + 1, end)
    kids: i64 = count
    if count > 16:
        tail: i64 = count % 16
        if tail:
            kids = tail + 1
        else:
            block: i64 = block_size(count)
            kids = (count - 1) // block + 1
    return _scan_kids(data, at, end, depth, strict, places, kids)


def _scan_kids(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None, count: i64
) -> i64:
    at: i64 = pos
    left: i64 = count
    while left > 0:  # mypyc makes an object of each number of a `range`
        left -= 1
        if at < end and data[at] == 0x20:
            start: i64 = at + 1
            at = _within(at + 33, end, at)
            if places is not None:
                places.append(start)
        else:
            after: i64 = scan(data, at, end, depth + 1, strict, places)
            # "If the encoding of a child has at most 140 bytes, its parent contains that encoding"
            # (docs/cells.md "Embedding"). The other direction, a short child given by hash, is
            # visible only with the child: `check_cell` refuses it.
            if after - at > EMBEDDED_BYTES_MAX:
                raise bad_encoding(
                    f"an inline child has at most {EMBEDDED_BYTES_MAX} bytes, got {after - at}",
                    at,
                )
            at = after
    return at


def _scan_map(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None, tag: i64
) -> i64:
    count, at = read_vlq(data, pos + 1, end)
    if count > MAP_LEAF_MAX:
        _within(at + 3, end, pos)
        shift: i64 = data[at]
        high: i64 = data[at + 1]
        low: i64 = data[at + 2]
        kids: i64 = bit_count((high << 8) | low)
        # The shift is "the number of leading hex digits that all key hashes share", and a hash has
        # 64.
        if shift >= 2 * HASH_BYTES:
            raise bad_encoding(f"a map node shifts by at most 63 digits, got {shift}", at)
        if kids < 2:
            raise bad_encoding(f"a map node has at least two children, got {kids}", at)
        return _scan_kids(data, at + 3, end, depth, strict, places, kids)
    if not strict:
        width: i64 = 2 if tag == 0x82 else 1
        return _scan_kids(data, at, end, depth, strict, places, count * width)
    starts: list[i64] = []
    keys: list[bytes] = []
    for _ in range(count):
        start: i64 = at
        at = _scan_kids(data, at, end, depth, strict, places, 1)
        starts.append(start)
        keys.append(data[start:at])
        if tag == 0x82:
            at = _scan_kids(data, at, end, depth, strict, places, 1)
    hashes = kid_hashes(keys)
    # Refused are "keys of a Map or Set leaf that are not in strictly increasing order of their
    # hashes" (docs/cells.md "Decoding"): equal keys, too.
    for i in range(1, len(hashes)):
        if hashes[i] <= hashes[i - 1]:
            raise bad_encoding(
                "map keys are not in strictly increasing order of their hashes", starts[i]
            )
    return at


def kid_hashes(kids: list[bytes]) -> list[bytes]:
    """Return the value hash of each of some kids, as their parent holds them."""
    hashes = sha3_256_many(kids)
    for i in range(len(kids)):
        if kids[i][0] == 0x20:  # the parent has the hash itself
            hashes[i] = kids[i][1:]
    return hashes


def key_hash_at(data: bytes, start: i64, end: i64) -> bytes:
    """Return the value hash of the kid at `start` .. `end`."""
    if data[start] == 0x20:
        return data[start + 1 : start + 33]
    return sha3_256(data[start:end])


def _scan_index(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None
) -> i64:
    count, at = read_vlq(data, pos + 1, end)
    if count == 0:
        return at
    if count == 1:
        return _scan_entry(data, at, end, depth, strict, places)
    _within(at + 1, end, pos)
    marker: i64 = data[at]
    at += 1
    if marker == 0x80:
        at = _scan_entry(data, at, end, depth, strict, places)
    elif marker != 0:
        raise bad_encoding(f"an index entry mark is 00 or 80, got {marker:#04x}", at - 1)
    _within(at + 3, end, pos)
    digits: i64 = data[at]
    high: i64 = data[at + 1]
    low: i64 = data[at + 2]
    kids: i64 = bit_count((high << 8) | low)
    if digits > INDEX_DEPTH_MAX:
        raise bad_encoding(f"an index depth is at most {INDEX_DEPTH_MAX}, got {digits}", at)
    # A node with an entry of its own branches with one child; without one it needs two.
    if kids < (1 if marker else 2):
        raise bad_encoding(f"an index node of {count} entries has {kids} children", at)
    return _scan_kids(data, at + 3, end, depth, strict, places, kids)


def _scan_entry(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None
) -> i64:
    if pos < end:
        tag: i64 = data[pos]
        if not (
            tag == 0x20
            or tag == 0x30
            or tag == 0x31
            or tag == 0x32
            or tag == 0x33
            or (tag & 0xF0) == 0xE0
        ):
            raise bad_encoding(
                f"an index key is a blob, string, keyword, symbol or address, got tag {tag:#04x}",
                pos,
            )
    return _scan_kids(data, pos, end, depth, strict, places, 2)


def _scan_syntax(
    data: bytes, pos: i64, end: i64, depth: i64, strict: bool, places: list[int] | None
) -> i64:
    at: i64 = _scan_kids(data, pos + 1, end, depth, strict, places, 1)
    if at >= end:
        raise bad_encoding("syntax metadata is cut off", at)
    tag: i64 = data[at]
    if tag == 0:
        return at + 1
    # "00 or the metadata Map in full" (docs/cells.md "Encoding table"); an empty Map has the form
    # 00.
    if tag != 0x82 or (at + 1 < end and data[at + 1] == 0):
        raise bad_encoding("syntax metadata is nil or a map with entries, in full", at)
    return scan(data, at, end, depth + 1, strict, places)
