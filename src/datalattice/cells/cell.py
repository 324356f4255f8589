"""Cell: the base of every tree-shaped value; references to children, encoding, hash and equality.

Theory of operation. A value is a plain Python object (None, bool, int, float, str, bytes), a
`Scalar`, or a `Cell`. A cell holds its children in one list, `_kids`, in the order of its encoding.
A kid is a value, or a `Ref`: a child known by hash.

A cell may be *closed*: it has its encoding and no kid list, and parses one level when it is first
read. So decoding costs one strict scan and creates no objects, and a store may close the cells it
has written, which frees the memory below them without changing any value. A new cell is open, and
has no encoding until it is needed.

Kid lists change only in ways that are invisible outside: a long plain kid is boxed in a Ref once
its hash is known, and a list shared by several vectors may grow past the part that each uses.

mypyc's `acyclic` would spare the cycle collector's time, but is not used for cells: freeing a chain
of more than 50 untracked objects corrupts memory, and peers can send such chains.

Length: every function here is on the path of every encoding; split, they would be called across
modules in the compiled kernel's innermost loop.

Source: CAD003 "Value ID"; docs/cells.md "Hashes", "Encoding table", "Values", "Partial values";
    CAD006 "Storage"; CAD002; docs/design/cells.md.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr, u8

from datalattice.cells.scalars import NAN_BITS, NanBits, Scalar, html_hook, repr_hook
from datalattice.crypto import sha3_256, sha3_256_many
from datalattice.errors import BadFormat, MissingData, TypeMismatch, UsageError
from datalattice.limits import (
    CHUNK_BYTES,
    EMBEDDED_BYTES_MAX,
    HASH_BYTES,
    INTEGER_BYTES_MAX,
    STRING_BYTES_MAX,
)

Value = object
"""Any value: None, bool, int, float, str, bytes, a Scalar or a Cell."""

TAG_REF: Final = 0x20
RECURSION_MAX: Final = 64  # levels encoded by recursion before an explicit stack takes over
_SHORT: Final = EMBEDDED_BYTES_MAX - 3  # the longest bytes or text that are embedded
NO_KIDS: Final[list[object]] = []  # shared by all new cells, which saves a list each
_I64: Final = 1 << 63
_INTEGER_BITS_MAX: Final = 8 * INTEGER_BYTES_MAX - 1  # without the sign


class Loader(Protocol):
    """Loads cells known by hash: a store, a message, or the cells of a transfer in progress."""

    def load(self, hash: bytes) -> Value:
        """Return the value with this hash. Raises: MissingData: the cell is missing."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class UncachedLoader:
    """Base of loaders that do not cache values: a Ref keeps the value it loads through one."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CellSink:
    """Base of loaders that also store: rebuilding a large value spills finished cells into them.

    This is not an ABC: compiled subclasses of an ABC share one cache of `isinstance` answers, so
    one subclass would get the answer of another.
    """

    @abstractmethod
    def load(self, hash: bytes) -> Value:
        """Return the value with this hash. Raises: MissingData: the cell is missing."""

    @abstractmethod
    def put_encodings(self, cells: Iterable[tuple[bytes, bytes]]) -> int:
        """Store cells given as (hash, encoding), children present; return how many were new.

        Raises: ReadOnly: the loader cannot store.
        """

    def get_many(self, hashes: Iterable[bytes]) -> list[Value]:
        """Return the values with these hashes, in their order, without caching them.

        Raises: MissingData: names all that are missing.
        """
        return [self.load(hash) for hash in hashes]

    def load_many(self, hashes: list[bytes]) -> list[Value]:
        """Return what `load` returns for each hash; a store reads those of its files together.

        Raises: MissingData: cells are missing.
        """
        return [self.load(hash) for hash in hashes]


class Ref:
    """A child known by hash: `value` if `present`, else loaded through `loader`."""

    __slots__ = ("hash", "loader", "present", "value")

    def __init__(
        self, hash: bytes, loader: Loader | None, value: Value = None, *, present: bool = False
    ) -> None:
        self.hash = hash
        self.loader = loader
        self.value = value
        self.present = present

    def resolve(self) -> Value:
        """Return the child.

        Raises: MissingData: there is no loader, or it does not have the cell.
        """
        if self.present:
            held = self.value
            # Another thread may have called `drop` meanwhile.
            if self.present:
                return held
        loader = self.loader
        if loader is None:
            raise MissingData([self.hash])
        value = loader.load(self.hash)
        # A caching loader is asked again instead: otherwise each Ref would keep its value in
        # memory.
        if isinstance(loader, UncachedLoader):
            self.value = value
            self.present = True
        return value

    def drop(self) -> None:
        """Release the value; the next read loads it again."""
        self.present = False
        self.value = None


class Cell:
    """Base of all values that have children."""

    __slots__ = ("_encoding", "_hash", "_kids", "_loader")

    _encoding: bytes | None
    _hash: bytes | None
    _kids: list[object] | None
    _loader: Loader | None

    def __init__(self) -> None:
        self._encoding = None
        self._hash = None
        self._kids = None
        self._loader = None

    # --- implemented by each type of cell ---

    def _build(self, depth: int) -> bytes:
        """Return the encoding of the open cell."""
        raise UsageError(type(self).__name__ + " is not a concrete kind of cell")

    def _parse(self) -> list[object]:
        """Return the kids read from the encoding of a closed cell."""
        raise UsageError(type(self).__name__ + " is not a concrete kind of cell")

    def _is_closed(self) -> bool:
        """Return whether the kids are not listed: all that the encoding refers to is stored."""
        return self._kids is None

    def _children(self) -> list[object]:
        """Return every kid in use (values and Refs)."""
        return self._open()

    def _close(self, loader: Loader) -> None:
        """Drop the kids of an encoded cell; they are parsed and loaded again when needed."""
        self._loader = loader
        self._kids = None

    # --- shared ---

    def _open(self) -> list[object]:
        kids = self._kids
        # A closed cell parses one level; its kids are closed cells in turn.
        if kids is None:
            kids = self._parse()
            self._kids = kids
        return kids

    def _encode(self, depth: int) -> bytes:
        encoding = self._encoding
        if encoding is None:
            # Deeper cells are encoded first, bottom-up, so that the recursion below stays short.
            if depth > RECURSION_MAX:
                _encode_deep(self)
            encoding = self._encoding
            if encoding is None:
                encoding = self._build(depth)
                self._encoding = encoding
        return encoding

    @property
    def encoding(self) -> bytes:
        """The canonical encoding of this cell; branches appear in it as hashes."""
        encoding = self._encoding
        return self._encode(0) if encoding is None else encoding

    @property
    def hash(self) -> bytes:
        """The value hash: SHA3-256 of the encoding, 32 bytes."""
        found = self._hash
        if found is None:
            # "The value hash is SHA3-256 (FIPS 202) of the encoding, 32 bytes" (docs/cells.md
            # "Hashes").
            found = sha3_256(self._encode(0))
            self._hash = found
        return found

    def __eq__(self, other: object) -> bool:
        return _equals(self, other)

    def __ne__(self, other: object) -> bool:
        return not _equals(self, other)

    def __hash__(self) -> int:
        # Equal cells have equal hashes, also across processes.
        return int.from_bytes(self.hash[:8], "big", signed=True)

    def __reduce__(self) -> tuple[Callable[[bytes], Value], tuple[bytes]]:
        # As a message, with all cells below: the other process may not have the store.
        return restore_hook[0], (pickle_hook[0](self),)

    def __repr__(self) -> str:
        return repr_hook[0](self)

    def _repr_html_(self) -> str:
        return html_hook[0](self)


def _restore_unset(_data: bytes) -> Value:
    raise UsageError("the message codec is not loaded")


def _pickle_unset(_value: Value) -> bytes:
    raise UsageError("the message codec is not loaded")


def _to_value_unset(_value: object) -> Value:
    raise UsageError("the conversions of Python objects are not loaded")


# Set by the modules above this one, which know every type of cell.
restore_hook: Final[list[Callable[[bytes], Value]]] = [_restore_unset]
pickle_hook: Final[list[Callable[[Value], bytes]]] = [_pickle_unset]
to_value_hook: Final[list[Callable[[object], Value]]] = [_to_value_unset]
long_hook: Final[list[Callable[[Value], Cell]]] = []


def to_value(value: object) -> Value:
    """Return `value` as a value of a cell; list, tuple, dict and set are converted.

    Raises: TypeMismatch: `value` has no counterpart.
    """
    kind = type(value)
    if kind is int:
        number: int = value  # type: ignore[assignment]
        # Almost all integers are small, and need no look at their length.
        if -0x2000000000000000 <= number < 0x2000000000000000:
            return value
        return check_integer(number)
    if (
        value is None
        or kind is str
        or kind is bytes
        or kind is float
        or kind is bool
        or isinstance(value, (Cell, Scalar))
    ):
        return value
    return to_value_hook[0](value)


def to_values(items: Iterable[object]) -> list[object]:
    """Return `items` as values of a cell; an error has the position of the item in its path."""
    made: list[object] = []
    try:
        for item in items:
            made.append(to_value(item))
    except TypeMismatch as error:
        raise error.below(len(made)) from None
    return made


def check_integer(number: int) -> int:
    """Return `number` if it fits 4,096 bytes of two's complement.

    Raises: UsageError: it does not fit.
    """
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    if bits > _INTEGER_BITS_MAX:
        raise UsageError(
            f"an integer has at most {INTEGER_BYTES_MAX} bytes, got one of {bits} bits"
        )
    return number


def deref(kid: object) -> Value:
    """Return the value of a kid; load it if it is known by hash only."""
    if type(kid) is Ref:
        return kid.resolve()
    return kid


def deref_many(kids: list[object], *, cached: bool = False) -> list[Value]:
    """Return the values of kids; those that are known by hash only are read and hashed together.

    cached: through the cache of a loader that has one; otherwise it does not cache these values.
    Raises: MissingData: cells are missing.
    """
    unread: list[bytes] = []
    places: list[int] = []
    store: CellSink | None = None
    for place, kid in enumerate(kids):
        if isinstance(kid, Ref) and not kid.present:
            loader = kid.loader
            # One call serves one store: with several loaders each kid is loaded by itself.
            if not isinstance(loader, CellSink) or (store is not None and loader is not store):
                unread = []
                break
            store = loader
            unread.append(kid.hash)
            places.append(place)
    # A single one gains nothing by this, and its loader may have it in the cache.
    if store is None or len(unread) < 2:
        return [deref(kid) for kid in kids]
    values = kids[:]
    found = store.load_many(unread) if cached else store.get_many(unread)
    for place, value in zip(places, found, strict=True):
        values[place] = value
    return [deref(kid) for kid in values]


# --- writing -------------------------------------------------------------------------------


def put_vlq(out: BytesWriter, count: i64) -> None:
    """Append the VLQ of `count`."""
    if count < 0x80:
        out.append(u8(count))
        return
    shift: i64 = 7
    # "In as few bytes as it needs" (docs/cells.md "Counts"): up to nine of seven bits.
    while shift < 56 and (count >> shift) >= 0x80:
        shift += 7
    while shift > 0:
        out.append(u8(((count >> shift) & 0x7F) | 0x80))
        shift -= 7
    out.append(u8(count & 0x7F))


def put_integer(out: BytesWriter, number: int) -> None:
    """Append the encoding of an integer of any size."""
    if -0x80 <= number < 0x80:  # compiled code compares small integers without a call
        small: i64 = number
        if small:
            out.append(u8(0x11))
            out.append(u8(small & 0xFF))
        else:
            out.append(u8(0x10))
        return
    if -0x800000 <= number < 0x800000:
        small = number
        if -0x8000 <= small < 0x8000:
            out.append(u8(0x12))
        else:
            out.append(u8(0x13))
            out.append(u8((small >> 16) & 0xFF))
        out.append(u8((small >> 8) & 0xFF))
        out.append(u8(small & 0xFF))
        return
    if -_I64 <= number < _I64:
        value: i64 = number
        length: i64 = 0
        if value:
            length = 1
            rest: i64 = value
            while rest < -128 or rest > 127:
                rest >>= 8
                length += 1
        out.append(u8(0x10 + length))
        shift: i64 = 8 * (length - 1)
        while shift >= 0:
            out.append(u8((value >> shift) & 0xFF))
            shift -= 8
        return
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    size = bits // 8 + 1
    # "Longer Integer: n (9 to 4,096), that many bytes" (docs/cells.md "Encoding table").
    out.append(u8(0x19))
    put_vlq(out, size)
    out.write(number.to_bytes(size, "big", signed=True))


def text_bytes(text: str) -> bytes:
    """Return the bytes of a string; bytes that are not UTF-8 are surrogate escapes.

    Raises: UsageError: a lone surrogate that does not stand for a byte.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"not UTF-8 text: {error}") from error


_TEXT_HEADS: Final = [bytes((0x30, length)) for length in range(128)]
_BLOB_HEADS: Final = [bytes((0x31, length)) for length in range(128)]
CHUNK_HEAD: Final = b"\x31\xa0\x00"  # of a blob of 4,096 bytes, the chunk of longer ones
_NAN_ENCODING: Final = b"\x1d" + NAN_BITS.to_bytes(8, "big")


def encode_double(number: float) -> bytes:
    """Return the encoding of a double; Python's NaN has the one canonical pattern."""
    # "Every NaN that a program makes is `7ff8000000000000`" (docs/cells.md "Encoding table").
    if number != number:
        return _NAN_ENCODING
    return b"\x1d" + struct.pack(">d", number)


def put_plain(out: BytesWriter, kid: object) -> bool:
    """Append a kid that has no kids and is always embedded; return False for any other kid."""
    # A string of 137 bytes, with its tag and a count of two bytes, is an encoding of 140.
    if kid is True:  # before integers: a Python bool is an int
        out.append(u8(0xB1))
    elif kid is False:
        out.append(u8(0xB0))
    elif isinstance(kid, int):
        if not -0x2000000000000000 <= kid < 0x2000000000000000:
            return False
        put_integer(out, kid)
    elif isinstance(kid, str):
        if len(kid) > 137:
            return False
        raw = text_bytes(kid)
        if len(raw) > 137:
            return False
        out.append(u8(0x30))
        put_vlq(out, len(raw))
        out.write(raw)
    elif kid is None:
        out.append(u8(0))
    elif isinstance(kid, bytes):
        if len(kid) > 137:
            return False
        out.append(u8(0x31))
        put_vlq(out, len(kid))
        out.write(kid)
    elif isinstance(kid, float):
        out.write(encode_double(kid))
    elif isinstance(kid, Scalar):
        out.write(kid._encoding)
    else:
        return False
    return True


def put_kids(out: BytesWriter, kids: list[object], start: i64, stop: i64, depth: int) -> None:
    """Append the kids from `start` to before `stop` as their parent holds them."""
    hash_kids(kids, start, stop, depth)
    for place in range(start, stop):
        put_kid(out, kids, place, depth)


def hash_kids(kids: list[object], start: i64, stop: i64, depth: int) -> None:
    """Hash the kids that are too long to be embedded together: see `sha3_256_many`."""
    if stop - start < 2:
        return
    places: list[i64] = []
    encodings: list[bytes] = []
    for place in range(start, stop):
        kid = kids[place]
        if isinstance(kid, Cell):
            encoding = kid._encoding
            if encoding is None:
                encoding = kid._encode(depth + 1)
            if kid._hash is not None:
                continue
        elif isinstance(kid, (bytes, str)) and len(kid) > _SHORT:
            encoding = encode(kid)
        else:
            continue
        if len(encoding) > EMBEDDED_BYTES_MAX:
            places.append(place)
            encodings.append(encoding)
    if len(places) > 1:
        digests = sha3_256_many(encodings)
        for i in range(len(places)):
            kid = kids[places[i]]
            if isinstance(kid, Cell):
                kid._hash = digests[i]
            else:
                # Boxed with its hash, so that a chunk or a long string is hashed once.
                kids[places[i]] = Ref(digests[i], None, kid, present=True)


def put_kid(out: BytesWriter, kids: list[object], position: int, depth: int) -> None:
    """Append a kid as its parent holds it: its encoding if short, else its hash.

    CAD003: a child is embedded if its encoding is at most 140 bytes.
    """
    kid = kids[position]
    if isinstance(kid, Cell):
        encoding = kid._encoding
        if encoding is None:
            encoding = kid._encode(depth + 1)
        # "Only the length of the child's own encoding counts" (docs/cells.md "Embedding").
        if len(encoding) <= EMBEDDED_BYTES_MAX:
            out.write(encoding)
        else:
            out.append(u8(TAG_REF))
            out.write(kid.hash)
    elif isinstance(kid, Ref):
        out.append(u8(TAG_REF))
        out.write(kid.hash)
    elif not put_plain(out, kid):
        _put_long(out, kids, position, kid)


def _put_long(out: BytesWriter, kids: list[object], position: int, kid: Value) -> None:
    encoding = encode(kid)
    if len(encoding) <= EMBEDDED_BYTES_MAX:  # an integer over 62 bits, or a tree of few chunks
        out.write(encoding)
        return
    # A branch: "its parent contains `20` and its hash, 33 bytes" (docs/cells.md "Embedding").
    digest = sha3_256(encoding)
    # Boxed with its hash, so that a long string is hashed once.
    kids[position] = Ref(digest, None, kid, present=True)
    out.append(u8(TAG_REF))
    out.write(digest)


def encode(value: Value) -> bytes:
    """Return the canonical encoding of the cell of `value`; branches appear as hashes."""
    if isinstance(value, Cell):
        return value.encoding
    if value is None:
        return b"\x00"
    # Before integers: in Python a bool is an int.
    if value is True:
        return b"\xb1"
    if value is False:
        return b"\xb0"
    if isinstance(value, Scalar):
        return value._encoding
    if isinstance(value, float):
        return encode_double(value)
    if isinstance(value, str) and len(value) < 128:
        raw = text_bytes(value)
        if len(raw) < 128:
            return _TEXT_HEADS[len(raw)] + raw
    if isinstance(value, bytes):
        if len(value) < 128:
            return _BLOB_HEADS[len(value)] + value
        if len(value) == CHUNK_BYTES:
            return CHUNK_HEAD + value
    out = BytesWriter()
    if isinstance(value, int):
        put_integer(out, check_integer(value))
        return out.getvalue()
    if isinstance(value, (str, bytes)):
        raw = value if isinstance(value, bytes) else text_bytes(value)
        if len(raw) > CHUNK_BYTES:
            return long_hook[0](value).encoding
        out.append(u8(0x31 if isinstance(value, bytes) else 0x30))
        put_vlq(out, len(raw))
        out.write(raw)
        return out.getvalue()
    return encode(to_value(value))


def value_hash(value: Value) -> bytes:
    """Return the value hash: SHA3-256 of the encoding, 32 bytes. Equal values have equal hashes."""
    if isinstance(value, Cell):
        return value.hash
    return sha3_256(encode(value))


def kid_hash(kid: object) -> bytes:
    """Return the value hash of a kid without loading it."""
    if isinstance(kid, Ref):
        return kid.hash
    return value_hash(kid)


def is_embedded(value: Value) -> bool:
    """Return whether `value` is embedded in its parent (encoding of at most 140 bytes)."""
    return len(encode(value)) <= EMBEDDED_BYTES_MAX


def same(a: Value, b: Value) -> bool:
    """Return whether two values have equal encodings: `True`, `1` and `1.0` differ."""
    if a is b:
        return True
    if isinstance(a, Cell) and isinstance(b, Cell):
        # Hashes that are known already are compared first; nothing is hashed for a comparison.
        if a._hash is not None and b._hash is not None:
            return a._hash == b._hash
        return a.encoding == b.encoding
    if isinstance(a, (str, bytes)) and type(a) is type(b):
        return a == b
    if type(a) is int and type(b) is int:
        return a == b
    return encode(a) == encode(b)


def _equals(cell: Cell, other: object) -> bool:
    """Return the result of `==`; False for an object that is not a value."""
    # "Equal objects must have equal hashes" (docs/cells.md "Python values"): lists, dicts and sets
    # have no hash, but tuples and frozensets have another one than cells.
    if isinstance(other, (tuple, frozenset)):
        return False
    try:
        return same(cell, other)
    except UsageError:  # the other object cannot be encoded, so it is not a value
        return False


def same_kid(a: object, b: object) -> bool:
    """Return whether two kids are the same value, by hash if one is not loaded; loads nothing."""
    if a is b:
        return True
    if isinstance(a, Ref):
        if isinstance(b, Ref):
            return a.hash == b.hash
        return _is_branch(b, a.hash)
    if isinstance(b, Ref):
        return _is_branch(a, b.hash)
    return same(a, b)


def unchanged(kid: object, fresh: object) -> bool:
    """Return whether replacing a kid by `fresh` leaves its cell unchanged.

    A cell that was never encoded counts as a change, unless it is the kid itself: a comparison
    would encode all that is new below it, and make signatures that the next write replaces.
    """
    if isinstance(fresh, Cell) and fresh._encoding is None:
        return kid is fresh
    return same_kid(kid, fresh)


def _is_branch(kid: object, digest: bytes) -> bool:
    """Return whether a loaded kid is the branch with this hash.

    An embedded kid never is. Otherwise two trees that differ only in embedding a kid would seem
    equal in every part, and a search for their difference might not end.
    """
    return can_branch(kid) and not is_embedded(kid) and digest == value_hash(kid)


def can_branch(kid: object) -> bool:
    """Return whether the type of a kid can be a branch or contain one."""
    if isinstance(kid, (Cell, str, bytes)):
        return True
    return isinstance(kid, int) and kid.bit_length() > 8 * (EMBEDDED_BYTES_MAX - 4)


def surely_same(a: object, b: object) -> bool:
    """Return whether two kids are known to be the same value, without encoding either.

    False means unknown: trees that were never encoded are compared by descending.
    """
    if a is b:
        return True
    if isinstance(a, Cell) and isinstance(b, Cell):
        if a._hash is not None and b._hash is not None:
            return a._hash == b._hash
        if a._encoding is not None and b._encoding is not None:
            return a._encoding == b._encoding
        return False
    return same_kid(a, b)


def _encode_deep(top: Cell) -> None:
    """Encode everything below `top` bottom-up with an explicit stack.

    Chains of cells can be millions long.
    """
    stack: list[Cell] = [top]
    while stack:
        cell = stack[-1]
        if cell._encoding is not None:
            stack.pop()
            continue
        waiting = [
            kid for kid in cell._children() if isinstance(kid, Cell) and kid._encoding is None
        ]
        if waiting:
            stack.extend(waiting)
            continue
        cell._encoding = cell._build(0)
        stack.pop()


def broken(what: str) -> BadFormat:
    """Return the error for a tree whose parts are inconsistent."""
    return BadFormat(f"not a canonical value: {what}")


def double_value(bits: bytes) -> Value:
    """Return the value of the 8 bytes of a double: a float, or `NanBits` for another NaN."""
    number: float = struct.unpack(">d", bits)[0]
    if number != number:
        pattern = int.from_bytes(bits, "big")
        if pattern != NAN_BITS:
            return NanBits(pattern)
    return number


assert HASH_BYTES == 32
assert CHUNK_BYTES < STRING_BYTES_MAX
