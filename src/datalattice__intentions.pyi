from collections.abc import Callable

from datalattice.weaver.intention import SignedIntention

def decode_many(
    envelopes: list[bytes],
    store_id: bytes,
    payload_max: int,
    deps_max: int,
    blake3: Callable[[bytes], object],
    kinds: tuple[type, type, type],
    /,
) -> list[SignedIntention | None]: ...
