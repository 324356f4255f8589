"""Types of the extension in `signatures/signatures.c`."""

def first_unverified(
    function: int, signed: list[tuple[bytes, bytes, bytes]], begin: int, end: int, /
) -> int: ...
