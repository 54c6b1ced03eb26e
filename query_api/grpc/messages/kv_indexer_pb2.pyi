from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MatchExternalKvPrefixRequest(_message.Message):
    __slots__ = ("hashes", "max_blocks")
    HASHES_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    max_blocks: int
    def __init__(self, hashes: _Optional[_Iterable[bytes]] = ..., max_blocks: _Optional[int] = ...) -> None: ...

class ExternalKvPrefixMatch(_message.Message):
    __slots__ = ("worker_address", "matched_prefix_blocks", "worker_id")
    WORKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MATCHED_PREFIX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_address: str
    matched_prefix_blocks: int
    worker_id: str
    def __init__(self, worker_address: _Optional[str] = ..., matched_prefix_blocks: _Optional[int] = ..., worker_id: _Optional[str] = ...) -> None: ...

class MatchExternalKvPrefixResponse(_message.Message):
    __slots__ = ("matches", "best_prefix_blocks", "blocks_read")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    BEST_PREFIX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_READ_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[ExternalKvPrefixMatch]
    best_prefix_blocks: int
    blocks_read: int
    def __init__(self, matches: _Optional[_Iterable[_Union[ExternalKvPrefixMatch, _Mapping]]] = ..., best_prefix_blocks: _Optional[int] = ..., blocks_read: _Optional[int] = ...) -> None: ...
