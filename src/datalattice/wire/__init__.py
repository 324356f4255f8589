"""Wire: conversion between bytes and messages, without I/O."""

from datalattice.wire.answers import encode_answer as encode_answer, encode_supply as encode_supply
from datalattice.wire.framing import (
    FRAME_READ_BYTES as FRAME_READ_BYTES,
    FrameBuffer as FrameBuffer,
    Framing as Framing,
    encode_frame as encode_frame,
    encode_length as encode_length,
    encode_lengths as encode_lengths,
)
from datalattice.wire.identity import (
    answer_challenge as answer_challenge,
    encode_challenge as encode_challenge,
    proved_key as proved_key,
)
from datalattice.wire.lattice import (
    EXTRA_MAX as EXTRA_MAX,
    PATCH_BYTES_MAX as PATCH_BYTES_MAX,
    PATH_KEYS_MAX as PATH_KEYS_MAX,
    REQUEST_HASHES_MAX as REQUEST_HASHES_MAX,
    Announcement as Announcement,
    Challenge as Challenge,
    DataRequest as DataRequest,
    ErrorCode as ErrorCode,
    Goodbye as Goodbye,
    LatticeMessage as LatticeMessage,
    Patched as Patched,
    Ping as Ping,
    Query as Query,
    Result as Result,
    Unknown as Unknown,
    decode_payload as decode_payload,
    encode_announcement as encode_announcement,
    encode_complete as encode_complete,
    encode_failure as encode_failure,
    encode_goodbye as encode_goodbye,
    encode_patched as encode_patched,
    encode_ping as encode_ping,
    encode_query as encode_query,
    encode_request as encode_request,
    encode_result as encode_result,
)
from datalattice.wire.mux import (
    CREDIT_BYTES_MIN as CREDIT_BYTES_MIN,
    LARGE_FRAME_BYTES as LARGE_FRAME_BYTES,
    STREAM_BYTES as STREAM_BYTES,
    STREAMS_MAX as STREAMS_MAX,
    WINDOW_BYTES as WINDOW_BYTES,
    Mux as Mux,
    Streams as Streams,
)
from datalattice.wire.muxframes import (
    DATA_BYTES_MAX as DATA_BYTES_MAX,
    NONCE_BYTES as NONCE_BYTES,
    PROTOCOL_BYTES_MAX as PROTOCOL_BYTES_MAX,
    STORE_ID_BYTES_MAX as STORE_ID_BYTES_MAX,
    Hello as Hello,
    encode_mux_frame as encode_mux_frame,
)
from datalattice.wire.streams import (
    FRAME_BYTES as FRAME_BYTES,
    JOIN_BYTES as JOIN_BYTES,
    LATTICE as LATTICE,
    MAIN_STREAM as MAIN_STREAM,
    MUX_PROTOCOL as MUX_PROTOCOL,
    PLAIN_PROTOCOL as PLAIN_PROTOCOL,
    STREAM_AHEAD_BYTES_MAX as STREAM_AHEAD_BYTES_MAX,
    UNSENT_BYTES_MAX as UNSENT_BYTES_MAX,
    FrameArrived as FrameArrived,
    MuxEvent as MuxEvent,
    SingleStream as SingleStream,
    StreamEnded as StreamEnded,
    StreamOpened as StreamOpened,
)
