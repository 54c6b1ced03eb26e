"""Messages of SGLang's router and SMG's gateway as these have them: the fields with the types that
their own definitions give them, not those that ours do.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto

_TYPES: Final = {
    "string": Field.TYPE_STRING,
    "bytes": Field.TYPE_BYTES,
    "bool": Field.TYPE_BOOL,
    "uint32": Field.TYPE_UINT32,
    "uint64": Field.TYPE_UINT64,
    "fixed64": Field.TYPE_FIXED64,
    "sfixed64": Field.TYPE_SFIXED64,
    "enum": Field.TYPE_INT32,  # alike on the wire
}

Fields = dict[str, tuple[int, str]]
"""Number and type by name; a type of `repeated X` or of another message."""

_MATCHES: Final[dict[str, Fields]] = {
    "ExternalKvPrefixMatch": {
        "worker_address": (1, "string"),
        "matched_prefix_blocks": (2, "uint32"),
        "worker_id": (3, "string"),
    },
    "MatchExternalKvPrefixResponse": {
        "matches": (1, "repeated ExternalKvPrefixMatch"),
        "best_prefix_blocks": (2, "uint32"),
        "blocks_read": (3, "uint32"),
    },
}

_RADIX_INDEX: Final[dict[str, Fields]] = {
    "Keyspace": {
        "model": (1, "string"),
        "symbol_kind": (2, "enum"),
        "block_size": (3, "uint32"),
        "hash_scheme": (4, "uint32"),
    },
    "Block": {"seq_hash": (1, "fixed64"), "content_hash": (2, "fixed64")},
    "Stored": {"parent_seq_hash": (1, "fixed64"), "blocks": (2, "repeated Block")},
    "Event": {"stored": (1, "Stored"), "cleared": (3, "bool")},
    "Added": {"capacity_blocks": (1, "uint64"), "event_fed": (2, "bool"), "metadata": (3, "bytes")},
    "Update": {
        "keyspace": (1, "Keyspace"),
        "holder": (2, "string"),
        "epoch": (3, "uint64"),
        "seq": (4, "uint64"),
        "events": (5, "repeated Event"),
        "added": (6, "Added"),
        "dropped": (7, "bool"),
    },
    "PublishAck": {
        "holder": (1, "string"),
        "epoch": (2, "uint64"),
        "applied_seq": (3, "uint64"),
        "digest_miss_tip": (4, "fixed64"),
    },
    "Query": {
        "query_id": (1, "uint64"),
        "keyspace": (2, "Keyspace"),
        "content_hashes": (3, "repeated fixed64"),
    },
    "Interval": {"start": (1, "uint32"), "end": (2, "uint32")},
    "HolderScore": {
        "holder": (1, "string"),
        "matched_blocks": (2, "uint32"),
        "total_blocks": (3, "uint64"),
        "event_fed": (4, "bool"),
        "intervals": (5, "repeated Interval"),
        "lane_meta": (6, "bytes"),
    },
    "Match": {"query_id": (1, "uint64"), "scores": (2, "repeated HolderScore")},
}


class Messages:
    """The message classes of one definition, as attributes."""

    def __init__(self, package: str, messages: dict[str, Fields]) -> None:
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{package}.proto", package=package, syntax="proto3"
        )
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, (number, kind) in fields.items():
                of = kind.removeprefix("repeated ")
                is_repeated = kind != of
                message.field.add(
                    name=field,
                    number=number,
                    label=Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL,
                    type=_TYPES.get(of, Field.TYPE_MESSAGE),
                    type_name=None if of in _TYPES else f".{package}.{of}",
                )
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._classes = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in messages
        }

    def __getattr__(self, name: str) -> Any:
        return self._classes[name]


def _kv_indexer(hashes: str) -> Messages:
    request: Fields = {"hashes": (1, f"repeated {hashes}"), "max_blocks": (2, "uint32")}
    return Messages("kv_indexer.v1", {"MatchExternalKvPrefixRequest": request, **_MATCHES})


PACKED: Final = _kv_indexer("sfixed64")
"""Of SGLang's router since August 2026."""

TEXT: Final = _kv_indexer("string")
"""Of those before."""

RADIX: Final = Messages("radix_index", _RADIX_INDEX)
"""Of SMG's gateway."""
