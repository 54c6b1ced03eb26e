"""A query: its body checked as Conductor checks it, its scope, and the kernel's answer."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

from query_api.access.rights import OPEN, Access
from query_api.http.errors import RequestError, shown
from query_api.http.requests.block_keys import KEY_FIELDS, NO_KEYS, BlockKeys, read_block_keys
from query_api.http.requests.fields import (
    INT64_MAX,
    bounded_text,
    checked_binary,
    read_hashes,
    read_integer,
    read_name,
    read_optional_text,
    read_text,
    read_tokens,
)
from query_api.http.requests.options import OPTION_NAMES, read_parameters
from query_api.http.wire import Field, Wire, split_fields
from schemas.identities import DEFAULT_TENANT, PrefixScope
from schemas.limits import BLOCK_SIZE_MAX, NAME_BYTES_MAX
from streams.kernel.interface import InstanceMatch, ReadOnlyKernel

_URL_FIELDS: Final = frozenset(
    {
        "additional_salt",
        "block_size",
        "cache_salt",
        "instance_id",
        "lora_id",
        "lora_name",
        "model",
        "modelname",
        "tenant_id",
    }
)
_BODY_FIELDS: Final = tuple(sorted(_URL_FIELDS))
"""Of a body in JSON, beside its tokens or hashes: the same; with tokens `KEY_FIELDS`, too."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,100}")


class Query(NamedTuple):
    """A checked request.

    Attributes:
        content: tokens as (n,) u32 LE, or prefix hashes as (n,) u64 LE.
        cache_salt: "" for none.
        additional_salt: None where the request names no namespace.
        instance_id: None for every instance; "" matches none.
        keys: what besides tokens enters the hashes of its blocks, but for the cache salt.
    """

    model: str
    block_size: int
    content: bytes
    tenant_id: str = DEFAULT_TENANT
    lora_name: str = ""
    cache_salt: str = ""
    additional_salt: str | None = None
    instance_id: str | None = None
    keys: BlockKeys = NO_KEYS

    @property
    def scope(self) -> PrefixScope:
        """The scope without regard to the cache salt."""
        return PrefixScope(
            self.tenant_id, self.model, self.lora_name, self.block_size, self.additional_salt or ""
        )


def scan_query(kernel: ReadOnlyKernel, body: bytes) -> Query | None:
    """A plain JSON body of `POST /query`, scanned; None where the full path must decide.

    The scanner takes only what the full path accepts, by the same bounds.
    """
    scanned = kernel.scan_query(body)
    if scanned is None:
        return None
    model, lora_name, tenant_id, instance_id, block_size, cache_salt, tokens = scanned
    return Query(model, block_size, tokens, tenant_id, lora_name, cache_salt, None, instance_id)


def read_prompt(kernel: ReadOnlyKernel, body: bytes, wire: Wire, access: Access = OPEN) -> Query:
    """As `read_query`, by the scanner where it can: it makes no object of each token."""
    if wire is Wire.JSON:
        scanned = scan_query(kernel, body)
        # It does not tell a tenant that is named from one that is not.
        if scanned is not None and access.admits(scanned.tenant_id):
            return scanned
    return with_adapter(kernel, read_query(body, wire, access))


def read_query(body: bytes, wire: Wire, access: Access = OPEN) -> Query:
    """The body of `POST /query`, checked in the order of its fields, then for missing ones.

    Raises:
        RequestError: the first thing that is wrong.
        AccessError: it is about a tenant that the caller may not ask about.
    """
    return _read(body, wire, access, content="token_ids", aliases=("token_ids",), read=read_tokens)


def read_hash_query(body: bytes, wire: Wire, access: Access = OPEN) -> Query:
    """The body of `POST /query_by_hash`; `block_hash` is an older name of `seq_hashes`. Raises as
    `read_query`.
    """
    aliases = ("seq_hashes", "block_hash")
    return _read(body, wire, access, content="seq_hashes", aliases=aliases, read=read_hashes)


def _read(
    body: bytes,
    wire: Wire,
    access: Access,
    *,
    content: str,
    aliases: tuple[str, ...],
    read: Callable[[Field, Wire], bytes],
) -> Query:
    model: str | None = None
    block_size: int | None = None
    packed: bytes | None = None
    texts: dict[str, str] = {}
    keys: dict[str, Field] = {}
    lora_id: int | None = None
    known = (*aliases, *_BODY_FIELDS)
    if content == "token_ids":
        known += KEY_FIELDS
    for field in split_fields(body, wire):
        if field.name == "model" or (field.name == "modelname" and wire is Wire.JSON):
            model = read_name(field, wire)
        elif field.name == "block_size":
            block_size = _read_block_size(field, wire)
        elif field.name in aliases:
            packed = read(field, wire)
        elif field.name == "lora_id" and wire is Wire.JSON:
            lora_id = _read_lora_id(field, wire)
        elif field.name in KEY_FIELDS and content == "token_ids":
            keys[field.name] = field
        else:
            texts[field.name] = _read_option(field, wire, known)
    if model is None:
        raise missing("model")
    if block_size is None:
        raise missing("block_size")
    if packed is None:
        raise missing(content)
    query = _query(model, block_size, packed, texts, lora_id, access)
    if not keys:
        return query
    return query._replace(keys=read_block_keys(keys, wire, len(packed) // 4, block_size))


def read_octets_query(
    body: bytes, url_query: bytes, access: Access = OPEN, *, by_hash: bool
) -> Query:
    """A body that is nothing but tokens, (n,) u32 LE, or hashes, (n,) u64 LE; the other fields, by
    the names that they have in JSON, stand in the URL. Raises as `read_query`.
    """
    texts = {
        name: bounded_text(name, value)
        for name, value in read_parameters(url_query, errors="strict")
        if name not in OPTION_NAMES
    }
    for name in texts:
        if name not in _URL_FIELDS:
            raise _in_a_body(unknown_field(name, _URL_FIELDS))
    if "modelname" in texts:
        texts.setdefault("model", texts.pop("modelname"))
    for name in ("model", "block_size"):
        if name not in texts:
            raise missing(name)
    if not texts["model"]:
        message = "model must not be empty"
        raise RequestError("invalid_value", message, field="model", more=', got: ""')
    lora_id = None if "lora_id" not in texts else _check_lora_id(_url_integer(texts, "lora_id"))
    block_size = _check_block_size(_url_integer(texts, "block_size"))
    name, width = ("seq_hashes", 8) if by_hash else ("token_ids", 4)
    content = checked_binary(name, body, width=width)
    return _query(texts["model"], block_size, content, texts, lora_id, access)


def url_query(texts: dict[str, str], access: Access = OPEN) -> Query:
    """A query whose fields all stand in the URL, `token_ids` as numbers with commas between. Raises
    as `read_query`.
    """
    numbers = texts.pop("token_ids", None)
    if numbers is None:
        raise missing("token_ids", "numbers with commas between, as token_ids=1,2,3")
    body = b'{"model":"-","block_size":1,"token_ids":[' + numbers.encode() + b"]}"
    content = read_query(body, Wire.JSON).content
    parameters = urlencode(texts).encode()
    return read_octets_query(content, parameters, access, by_hash=False)


def _query(
    model: str,
    block_size: int,
    content: bytes,
    texts: dict[str, str],
    lora_id: int | None,
    access: Access,
) -> Query:
    return Query(
        model,
        block_size,
        content,
        access.tenant_of(texts.get("tenant_id")),
        _lora_level(texts.get("lora_name", ""), lora_id),
        texts.get("cache_salt", ""),
        texts.get("additional_salt"),
        texts.get("instance_id"),
    )


def _url_integer(texts: dict[str, str], name: str) -> int:
    text = texts[name]
    if not _NUMBER.fullmatch(text):
        message = f"{name} must be an integer"
        raise RequestError("invalid_type", message, field=name, more=f", got: {shown(text)}")
    return int(text)


def _read_option(field: Field, wire: Wire, known: Sequence[str]) -> str:
    if field.name in ("tenant_id", "instance_id"):
        return read_text(field, wire)
    if field.name == "lora_name":
        return read_lora_name(field, wire)
    if field.name == "cache_salt":
        return read_optional_text(field, wire)
    if field.name == "additional_salt" and wire is Wire.JSON:
        return read_text(field, wire)
    raise _no_text(unknown_field(field.name, known))


def read_lora_name(field: Field, wire: Wire) -> str:
    """The adapter; the published JSON form also lets null mean the base model."""
    return read_optional_text(field, wire) if wire is Wire.JSON else read_text(field, wire)


def _read_block_size(field: Field, wire: Wire) -> int:
    return _check_block_size(read_integer(field, wire))


def _check_block_size(block_size: int) -> int:
    if not 0 < block_size <= INT64_MAX:
        message = "block_size must be a positive integer"
        raise RequestError("out_of_range", message, field="block_size", more=f", got: {block_size}")
    return block_size


def _read_lora_id(field: Field, wire: Wire) -> int:
    return _check_lora_id(read_integer(field, wire))


def _check_lora_id(lora_id: int) -> int:
    if not 0 <= lora_id <= INT64_MAX:
        message = "lora_id must be a non-negative integer"
        raise RequestError("out_of_range", message, field="lora_id", more=f", got: {lora_id}")
    return lora_id


def _lora_level(lora_name: str, lora_id: int | None) -> str:
    if lora_id is None:
        return lora_name
    if lora_name:
        message = "lora_id must not be used together with lora_name"
        more = f", got {lora_id} and {shown(lora_name)}: leave one of them out"
        raise RequestError("invalid_value", message, field="lora_id", more=more)
    return f"lora_id:{lora_id}"


_EXPECTED: Final = {
    "block_size": "how many tokens a block of the engine has, a positive integer",
    "endpoint": "where the engine publishes its events, as tcp://10.0.0.7:5557, or its URL",
    "instance_id": "the name of the engine, a string",
    "model": "the name by which engines serve the model, a string (modelname says the same)",
    "modelname": "the name by which the engine serves the model, a string (model says the same)",
    "seq_hashes": "the hashes of the prompt's blocks, an array of integers",
    "token_ids": "the tokens of the prompt, an array of integers",
}


def missing(name: str, expected: str = "") -> RequestError:
    """A required field is not there; what is expected is said of those that most requests have."""
    expected = expected or _EXPECTED.get(name, "")
    more = f": {expected}" if expected else ""
    return RequestError("missing", f"{name} is required", field=name, more=more)


def unknown_field(name: str, known: Iterable[str]) -> RequestError:
    """A field that the endpoint does not have; its name is cut to a length worth reading."""
    name = name[:NAME_BYTES_MAX]
    more = f"; expected: {', '.join(sorted(known))}"
    message = f"unsupported request field: {name}"
    return RequestError("unknown_field", message, field=name, more=more)


def _in_a_body(error: RequestError) -> RequestError:
    """What a field that a URL has no place for is answered with."""
    if error.field in KEY_FIELDS:
        error.more = f": it stands in a body of JSON or msgpack, with token_ids{error.more}"
    return error


_TEXT_FIELDS: Final = ("prompt", "messages", "text", "input")


def _no_text(error: RequestError) -> RequestError:
    """What a field of a request to an engine is answered with."""
    if error.field in _TEXT_FIELDS:
        error.more = (
            ": Reprise takes token ids: tokenise first, with the chat template (vLLM: POST"
            f" /tokenize), and send token_ids{error.more}"
        )
    return error


def answer_query(kernel: ReadOnlyKernel, query: Query) -> tuple[PrefixScope, list[InstanceMatch]]:
    """The scope that was asked, and what its instances hold of the prompt.

    `cache_salt` has two published meanings. Where a namespace of that name is registered
    (`additionalsalt` of `/register`), it names that namespace, and its blocks are hashed without
    it. Everywhere else it is the request's own salt, which engines hash into the first block. A
    request that names its namespace itself (`additional_salt`) means the latter.
    """
    scope, forms = block_keys(kernel, query)
    if query.block_size > BLOCK_SIZE_MAX:
        return scope, []
    found = [kernel.query(scope, query.content, keys, query.instance_id) for keys in forms]
    return scope, furthest(found)


def furthest(found: list[list[InstanceMatch]]) -> list[InstanceMatch]:
    """What each instance holds of a prompt, where its blocks may have their keys in one form or
    another: of each that form of which it holds more.
    """
    if len(found) == 1:
        return found[0]
    longest: dict[str, InstanceMatch] = {}
    for match in itertools.chain.from_iterable(found):
        best = longest.setdefault(match.instance_id, match)
        if match.longest > best.longest:
            longest[match.instance_id] = match
    return [match for _, match in sorted(longest.items())]


def answer_hash_query(
    kernel: ReadOnlyKernel, query: Query
) -> tuple[PrefixScope, list[InstanceMatch]]:
    """As `answer_query`, for hashes; they hold a request's own salt, so only a namespace counts."""
    scope = query.scope
    if query.cache_salt:
        scope, _ = _namespace(kernel, query)
    if query.block_size > BLOCK_SIZE_MAX:
        return scope, []
    return scope, kernel.query_by_hash(scope, query.content, query.instance_id)


def limiting_groups(kernel: ReadOnlyKernel, query: Query, *, by_hash: bool) -> dict[str, int]:
    """The cache group that ended an instance's prefix, of those where one did: of the same query.
    Cost as the query's, where any group is counted by a rule.
    """
    if query.block_size > BLOCK_SIZE_MAX or not kernel.has_rules():
        return {}
    if by_hash:
        scope, _ = named_scope(kernel, query)
        return dict(kernel.limiting_groups(scope, query.content, query.instance_id))
    scope, forms = block_keys(kernel, query)
    blocks = len(query.content) // (4 * query.block_size)
    found: dict[str, int] = {}
    for keys in reversed(forms):  # the newest form has the last word
        hashes = kernel.prefix_hashes(scope, query.content, keys, blocks)
        found |= dict(kernel.limiting_groups(scope, hashes, query.instance_id))
    return found


def prefixes_of(kernel: ReadOnlyKernel, query: Query, *, by_hash: bool) -> bytes:
    """The prefix hashes that `answer_query` or `answer_hash_query` may look for, (n,) u64 LE: with
    the request's salt and without it, and of blocks of pairs, too: what it means is up to the table
    that is asked. Cost O(tokens), for each of them.
    """
    if by_hash:
        return query.content
    if query.block_size > BLOCK_SIZE_MAX:
        return b""
    forms = {keys for salt in ("", query.cache_salt) for keys in _forms(query, salt)}
    return b"".join(
        kernel.hash_blocks(query.content, query.block_size, keys, pairs)
        for keys in sorted(forms)
        for pairs in (False, True)
    )


def is_known(kernel: ReadOnlyKernel, scope: PrefixScope) -> bool:
    """Whether the scope has a participant; of a block size that no engine can have, none has."""
    return scope.block_size <= BLOCK_SIZE_MAX and kernel.knows(scope)


def block_keys(kernel: ReadOnlyKernel, query: Query) -> tuple[PrefixScope, list[tuple[bytes, ...]]]:
    """The scope that a query is about, and what besides tokens enters its blocks there, as a kernel
    takes it: in each form in which engines may have it, the newest first.
    """
    scope, salted = named_scope(kernel, query)
    return scope, _forms(query, query.cache_salt if salted else "")


def _forms(query: Query, salt: str) -> list[tuple[bytes, ...]]:
    blocks = len(query.content) // 4 // query.block_size
    return query.keys.of_blocks(blocks, query.block_size, query.lora_name, salt)


def with_adapter(kernel: ReadOnlyKernel, query: Query) -> Query:
    """The query by the name of its adapter, where that stands in its keys alone: what every row
    begins with, if the model has an adapter of that name.
    """
    name = query.keys.adapter
    if not name or query.lora_name or name == query.cache_salt:
        return query
    named = query._replace(lora_name=name)
    scope, _ = named_scope(kernel, named)
    return named if is_known(kernel, scope) else query


def named_scope(kernel: ReadOnlyKernel, query: Query) -> tuple[PrefixScope, bool]:
    """The scope that a query is about, and whether its cache salt is the request's own."""
    return _namespace(kernel, query) if query.cache_salt else (query.scope, False)


def _namespace(kernel: ReadOnlyKernel, query: Query) -> tuple[PrefixScope, bool]:
    """The scope, and whether the cache salt is the request's own."""
    scope = query.scope
    if query.additional_salt is None:
        named = scope._replace(additional_salt=query.cache_salt)
        if is_known(kernel, named):
            return named, False
    return scope, True
