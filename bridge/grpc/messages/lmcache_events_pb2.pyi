from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscribeKvEventsRequest(_message.Message):
    __slots__ = ("instance_id", "model_name", "cursor", "max_events")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    MAX_EVENTS_FIELD_NUMBER: _ClassVar[int]
    instance_id: int
    model_name: str
    cursor: int
    max_events: int
    def __init__(self, instance_id: _Optional[int] = ..., model_name: _Optional[str] = ..., cursor: _Optional[int] = ..., max_events: _Optional[int] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ("instance_id",)
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    instance_id: int
    def __init__(self, instance_id: _Optional[int] = ...) -> None: ...

class KVEventBatch(_message.Message):
    __slots__ = ("enabled", "incarnation", "next_cursor", "lost", "events")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    incarnation: int
    next_cursor: int
    lost: bool
    events: _containers.RepeatedCompositeFieldContainer[KVEventRecord]
    def __init__(self, enabled: _Optional[bool] = ..., incarnation: _Optional[int] = ..., next_cursor: _Optional[int] = ..., lost: _Optional[bool] = ..., events: _Optional[_Iterable[_Union[KVEventRecord, _Mapping]]] = ...) -> None: ...

class KVEventRecord(_message.Message):
    __slots__ = ("seq", "kind", "medium", "block_hashes", "token_ids")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    kind: str
    medium: str
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    token_ids: bytes
    def __init__(self, seq: _Optional[int] = ..., kind: _Optional[str] = ..., medium: _Optional[str] = ..., block_hashes: _Optional[_Iterable[bytes]] = ..., token_ids: _Optional[bytes] = ...) -> None: ...
