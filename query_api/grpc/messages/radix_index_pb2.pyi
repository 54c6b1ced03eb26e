from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SymbolKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYMBOL_KIND_UNSPECIFIED: _ClassVar[SymbolKind]
    TOKENS: _ClassVar[SymbolKind]
    BYTES: _ClassVar[SymbolKind]
SYMBOL_KIND_UNSPECIFIED: SymbolKind
TOKENS: SymbolKind
BYTES: SymbolKind

class Keyspace(_message.Message):
    __slots__ = ("model", "symbol_kind", "block_size", "hash_scheme")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    HASH_SCHEME_FIELD_NUMBER: _ClassVar[int]
    model: str
    symbol_kind: SymbolKind
    block_size: int
    hash_scheme: int
    def __init__(self, model: _Optional[str] = ..., symbol_kind: _Optional[_Union[SymbolKind, str]] = ..., block_size: _Optional[int] = ..., hash_scheme: _Optional[int] = ...) -> None: ...

class Query(_message.Message):
    __slots__ = ("query_id", "keyspace", "content_hashes")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASHES_FIELD_NUMBER: _ClassVar[int]
    query_id: int
    keyspace: Keyspace
    content_hashes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, query_id: _Optional[int] = ..., keyspace: _Optional[_Union[Keyspace, _Mapping]] = ..., content_hashes: _Optional[_Iterable[int]] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class HolderScore(_message.Message):
    __slots__ = ("holder", "matched_blocks", "total_blocks", "event_fed", "intervals", "lane_meta")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FED_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    LANE_META_FIELD_NUMBER: _ClassVar[int]
    holder: str
    matched_blocks: int
    total_blocks: int
    event_fed: bool
    intervals: _containers.RepeatedCompositeFieldContainer[Interval]
    lane_meta: bytes
    def __init__(self, holder: _Optional[str] = ..., matched_blocks: _Optional[int] = ..., total_blocks: _Optional[int] = ..., event_fed: _Optional[bool] = ..., intervals: _Optional[_Iterable[_Union[Interval, _Mapping]]] = ..., lane_meta: _Optional[bytes] = ...) -> None: ...

class Match(_message.Message):
    __slots__ = ("query_id", "scores")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    query_id: int
    scores: _containers.RepeatedCompositeFieldContainer[HolderScore]
    def __init__(self, query_id: _Optional[int] = ..., scores: _Optional[_Iterable[_Union[HolderScore, _Mapping]]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("keyspace", "holder", "epoch", "seq")
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    keyspace: Keyspace
    holder: str
    epoch: int
    seq: int
    def __init__(self, keyspace: _Optional[_Union[Keyspace, _Mapping]] = ..., holder: _Optional[str] = ..., epoch: _Optional[int] = ..., seq: _Optional[int] = ...) -> None: ...

class PublishAck(_message.Message):
    __slots__ = ("holder", "epoch", "applied_seq")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQ_FIELD_NUMBER: _ClassVar[int]
    holder: str
    epoch: int
    applied_seq: int
    def __init__(self, holder: _Optional[str] = ..., epoch: _Optional[int] = ..., applied_seq: _Optional[int] = ...) -> None: ...
