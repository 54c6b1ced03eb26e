"""What is wrong by what comes of an instance's publishers, or does not. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from doctor.diagnosis import (
    CLEAR,
    Diagnosis,
    endpoints_of,
    has_published,
    is_settled,
    is_wildcard,
    named,
    ranks_of,
    register_again,
    switch_on,
)
from doctor.document import Code
from doctor.examination import Patient, facts_of, troubles_of
from doctor.reasons import reason_of
from query_api.ports import ServiceView
from schemas.answer_states import Activity, Doubt
from schemas.engine_facts import EngineFacts
from schemas.identities import UNSURE
from schemas.limits import ENGINE_RANKS_MAX, REPEATS_DOUBTED, UNREACHED_S
from schemas.registration import LMCACHE_TOPIC

DOCTOR_OVERFULL: Final = 1.5  # times what an engine has room for: it says not what it removes

NAMES_SHOWN_MAX: Final = 5  # adapters, or instances, of a finding; further ones are counted in it

_BLOCK_SIZE: Final = "block_size"
_BESIDE: Final = (
    "leave it registered as it is: what answers count is right. Smaller blocks are the ends of"
    " prompts, as vLLM keeps them since 0.24, and larger ones another cache group's: no query asks"
    " for them. Its answers are `exact` again once it has removed them"
)
"""Of blocks of another size, where those of the registered size come, too."""

_UNLIKELY: Final = 2**48  # batches of one process: more is a number whose bytes are reversed

_BINDS: Final = (
    "vLLM binds only wildcard and ipc endpoints, and connects to any other: one whose own endpoint"
    " is `tcp://127.0.0.1:PORT` publishes to nobody"
)


_AT_ONCE: Final = """ (`"replace": true`; it is so at once, and no block is forgotten)"""
"""Of a registration that `restates` the one that is there."""


class _Words(NamedTuple):
    """Of a doubt that does not pass by itself."""

    code: Code
    cause: str
    remedy: str


_DOUBTS: Final[Mapping[str, _Words]] = MappingProxyType(
    {
        Doubt.NO_ENDPOINT: _Words(
            Code.NO_ENDPOINT,
            "its HTTP address does not say that it publishes events for this rank with this block"
            " size: events are switched off, or its release does not say where it publishes",
            "switch them on (vLLM, SGLang: --kv-events-config); or register the `tcp://` address"
            " that it publishes at as `endpoint`",
        ),
        Doubt.ENGINE_AWAY: _Words(
            Code.ENGINE_AWAY,
            "its link is up, and its HTTP address does not answer: the engine hangs or starts, or"
            " `http_endpoint` is another's",
            "look at its log: `curl -m 2 HTTP_ENDPOINT/health`",
        ),
        Doubt.LINK_SILENT: _Words(
            Code.ENGINE_AWAY,
            "its link is up, and its socket does not answer: its process is stopped or gets no"
            " core, or its host or the network is gone",
            "look whether its process runs, and what else its host computes",
        ),
        Doubt.PROCESS_CHANGED: _Words(
            Code.PROCESS_CHANGED,
            "its HTTP address names another process than before over the same link: a load balancer"
            " stands there",
            "register the engine's own address as `http_endpoint`",
        ),
        Doubt.NO_REPLAY: _Words(
            Code.NO_REPLAY,
            "its link was down, or this service was, and it has no `replay_endpoint` to be asked"
            " at: it may have restarted meanwhile",
            "start vLLM with `replay_endpoint` in its --kv-events-config, and register that; or"
            " clear its cache",
        ),
        Doubt.PARTLY_KNOWN: _Words(
            Code.PARTLY_KNOWN,
            "the snapshot that its stream began with lacks what its engine had stored before its"
            " server listened: answers may count less than it holds",
            f"start the server before the engine, and the engine with a replay socket; or {CLEAR}",
        ),
        Doubt.REPLAY_SILENT: _Words(
            Code.REPLAY,
            "its replay socket does not answer: nothing listens at `replay_endpoint`",
            "register the address that its --kv-events-config names as `replay_endpoint`, or none",
        ),
        Doubt.REPLAY_BROKEN: _Words(
            Code.REPLAY,
            "its replay breaks off",
            "look at the bridge's log for the reason; a restart of the engine empties its buffer",
        ),
        Doubt.REPLAY_DIFFERS: _Words(
            Code.REPLAY,
            "its replay socket has other batches than it publishes: `replay_endpoint` is another"
            " engine's or another rank's (the base port plus the rank)",
            "register this rank's own address as `replay_endpoint`",
        ),
        Doubt.SPOOLED: _Words(
            Code.SPOOLED,
            "what it publishes waits on its bridge's disk: Kafka does not take it",
            "look at the bridge's GET /health, and at Kafka",
        ),
        Doubt.COPIES_UNKNOWN: _Words(
            Code.REPORT_MODE,
            "it has removed blocks that it had announced more often: copies, some of which are"
            " left, or reports of hits (kv_cache_report_mode=full). Of a worker of LMCache: chunks"
            " of other request tags, or layers, which have one name",
            "unregister it, and register it again with the `kv_cache_report_mode` that its requests"
            " ask for, `incremental` where none does; SGLang with LMCache or FlexKV with `full`. Of"
            " a worker it ends as the others of these are evicted, or stored again",
        ),
        Doubt.OBJECTS_WAIT: _Words(
            Code.OBJECTS_WAIT,
            "it is a pool, and has objects of which no registered engine has said, with tokens,"
            " which blocks they are: no answer counts these",
            "register every engine that stores into it, and let all hash alike (one"
            " PYTHONHASHSEED); one is found once an engine announces its block again, and no longer"
            " waits once the pool drops it",
        ),
        Doubt.HASHES_DIFFER: _Words(
            Code.HASHES_DIFFER,
            "it is a pool, and has objects of the same blocks by different hashes: the engines that"
            " share it do not hash alike, and each finds only what engines of its own hashes have"
            " stored, though answers count all",
            "start all engines of the model with one PYTHONHASHSEED and one hash algorithm, or"
            " vLLM from 0.29.0 on; it ends as the pool drops these objects",
        ),
        Doubt.TIERS_CLEARED: _Words(
            Code.TIERS_CLEARED,
            "it has cleared its cache or restarted, and had blocks on CPU or DISK, or may have"
            " stored some in batches that were lost: its events say nothing of those, so they may"
            " be there yet, and no answer counts them",
            "register it with `kv_offloading` `none`, where it has no other tier than its GPU;"
            " restart it, where it had them on the CPU alone; else clear these tiers, too (vLLM:"
            " POST /reset_prefix_cache?reset_external=true, and delete what is on disk), unregister"
            " it, and register it again",
        ),
        Doubt.NEVER_REMOVED: _Words(
            Code.NEVER_REMOVED,
            "it says which blocks it stores on a tier beside its GPU, and has never said that one"
            " is gone from there: the connectors of LMCache and Mooncake within vLLM do not, nor"
            " its tiers of files and objects. What goes from STORAGE or DISK without an owner, or"
            " from the CPU of an engine behind Dynamo, tells nothing of what such a one has beside",
            "register it with `kv_offloading` `native`, where vLLM's own offloading keeps them,"
            f" which says what is gone{_AT_ONCE}. Of connectors, and of files and objects, switch"
            " the events off, and follow the pool itself",
        ),
        Doubt.CHUNKS_UNKNOWN: _Words(
            Code.CHUNKS_UNKNOWN,
            "it offloads blocks and does not say their size, and none of them was the first of a"
            " prompt: it may keep several as one chunk, of which answers count the last one alone",
            "start vLLM with `self_describing_kv_events` in its kv_connector_extra_config, which"
            " names each block of a chunk. Where it keeps each block by itself this ends as it"
            " offloads the beginning of a prompt: send it one that it has not seen",
        ),
        Doubt.CHUNKS_DIFFER: _Words(
            Code.CHUNKS_DIFFER,
            "it has blocks on other tiers than its GPU in another size than it is registered with,"
            " as connectors do that keep several as one chunk (LMCache: 256 tokens by default): no"
            " answer counts these. What it has on its GPU is counted",
            "give the connector the engine's block size (LMCache: `chunk_size`), or switch its"
            " events off, and follow its pool itself; then clear the engine or restart it",
        ),
        Doubt.POOL_CLEARED: _Words(
            Code.POOL_CLEARED,
            "it had stored blocks in a pool that all instances of the model read, and has cleared"
            " its cache or restarted: nothing says whether they are there yet, and no answer counts"
            " them",
            "empty the pool, unregister the engine, and register it again: the other instances of"
            " the model are `unconfirmed` by it, too",
        ),
        Doubt.LENDER_GONE: _Words(
            Code.LENDER_GONE,
            "it is a pool, and an instance of its model has ended or restarted since its master"
            " began: what lay in memory that this process had lent is gone, and a master of"
            " Mooncake's main branch does not say so. Answers count it",
            "restart the master, which empties the pool; where no engine lends it memory, or its"
            " master says of every object that it is gone, register the pool with `kv_offloading`"
            f" `native`{_AT_ONCE}",
        ),
        Doubt.POOL_REMOVED: _Words(
            Code.POOL_REMOVED,
            "it has removed blocks from a pool that only others had stored there: answers count"
            " them, and no event says whether both mean one pool",
            "let an engine announce as `REMOTE` only what all instances of the model read. It ends"
            " as the engine stores these blocks itself; or unregister it, and register it again",
        ),
        Doubt.UNHELD_REMOVED: _Words(
            Code.UNHELD_REMOVED,
            "it has removed blocks from its GPU that it had not stored, though no batch is missing:"
            " what it says is not what its cache does. Connectors do so that send removals of their"
            " CPU under the name GPU (vLLM's SimpleCPUOffloadConnector up to 0.28), and a clear"
            " that the engine has announced and could not do"
            " (reset_prefix_cache?reset_external=true while requests run)",
            f"take a later release of the connector, or none; then {CLEAR}",
        ),
        Doubt.PARTIAL_REUSE: _Words(
            Code.PARTIAL_REUSE,
            "TensorRT-LLM, which Dynamo may be in front of, takes a block of which a prompt needs a"
            " part and writes over it, by default, and no event says so: such blocks count until it"
            " restarts",
            "start it with `enable_partial_reuse: false` in its `kv_cache_config`, and register it"
            f" with `kv_partial_reuse` `none`{_AT_ONCE}, as any other engine behind Dynamo; or"
            " route as before, and report `cached_tokens` to POST /feedback, which shows how much"
            " less it reuses",
        ),
        Doubt.GROUPS_UNKNOWN: _Words(
            Code.GROUPS_UNKNOWN,
            "its events do not tell what cache groups its model has: Dynamo keeps back those of"
            " sliding windows and recurrent states, and which of several groups of full attention"
            " has a block; TokenSpeed and ATOM name no group, nor does SGLang, which has said over"
            " HTTP that its model is hybrid. Of such a model it may reuse less than an answer says,"
            " or nothing",
            "register it with `kv_cache_groups` `one`, where the model has one group, of full"
            f" attention{_AT_ONCE}; of an engine behind Dynamo that reuses no block in part"
            " (vLLM, SGLang) say `kv_partial_reuse` `none`, too; else register vLLM's own socket,"
            " with the type vLLM, or route as before, and report `cached_tokens` to POST /feedback",
        ),
        Doubt.DROPS_UNSAID: _Words(
            Code.DROPS_UNSAID,
            "it may lose objects and says nothing of that: a Mooncake master what it evicts"
            " (0.3.14), what it removes for RemoveAll and the like, and what lay in the memory of a"
            " client that ended, or did not ping it in time; a server of LMCache events that find"
            " no place in its bus",
            "register the pool with `kv_offloading` `native`, where its master says what it evicts,"
            " engines lend it no memory, nothing is removed in bulk, and `client_live_ttl_sec`"
            f" outlasts each fault of the network{_AT_ONCE}; of LMCache's topic say `says_all` of"
            " the model, where its bus is never full; else route as before",
        ),
        Doubt.OUTCOMES_DIFFER: _Words(
            Code.OUTCOMES_DIFFER,
            "the last outcomes that tested `exact` answers contradicted them: engines found more or"
            " less in their caches than was said, and no event tells why. Of a pool, what they"
            " should have found there",
            f"look for what its release does not publish (docs/fail.md, Limits); then {CLEAR}. It"
            " ends once 20 outcomes agree, or as the engine is registered again",
        ),
        Doubt.RANK_MISSING: _Words(
            Code.RANKS,
            "its stream has events of a data-parallel rank that is not registered",
            "register each rank with the same endpoint and its `dp_rank`",
        ),
        Doubt.NOT_FOLLOWED: _Words(
            Code.NOT_FOLLOWED,
            "no bridge follows it",
            "start `reprise bridge`, or look at GET /health of those that run",
        ),
        Doubt.NO_HEARTBEAT: _Words(
            Code.NOT_FOLLOWED,
            "its bridge has not been heard of for seconds, or is far behind",
            "look at GET /health of the bridges and of the workers (`reprise streams`)",
        ),
    }
)


def _block_size(patient: Patient, now: float) -> Iterator[Diagnosis]:
    registered = patient.stream.block_size
    said = {facts.block_size for one in patient.ranks if (facts := facts_of(one)) is not None}
    sizes: dict[str, tuple[int, float, list[int]]] = {}
    for one in patient.ranks:
        for reason, blocks in one.state.left_out.items():
            kind, _, size = reason.partition(":")
            if kind == _BLOCK_SIZE:
                before, since, ranks = sizes.setdefault(size, (0, one.state.left_out_at, []))
                ranks.append(one.registration.dp_rank)
                sizes[size] = before + blocks, since, ranks
    for size, (blocks, since, ranks) in sorted(sizes.items()):
        if patient.entries:  # with another size these would be left out
            beside = f"{patient.entries} blocks of {registered}, which answers count"
            cause = f"beside {beside}, it publishes blocks of {size} tokens: {blocks} are left out"
            remedy = _BESIDE
        else:
            cause = (
                f"it publishes blocks of {size} tokens, and is registered with {registered}:"
                f" {blocks} blocks are left out"
            )
            remedy = register_again(patient, f'"block_size": {size}')
            remedy += f"; and ask POST /query with {size}"
        yield Diagnosis(Code.BLOCK_SIZE, cause, remedy, str(registered), size, since, tuple(ranks))
    others = sorted(said - {0, registered})
    if others and not sizes and not patient.entries:  # before the first block has come
        yield Diagnosis(
            Code.BLOCK_SIZE,
            f"it says that its blocks have {others[0]} tokens, and is registered with {registered}",
            register_again(patient, f'"block_size": {others[0]}')
            + f"; and ask POST /query with {others[0]}",
            str(registered),
            str(others[0]),
        )


def _left_out(patient: Patient, now: float) -> Iterator[Diagnosis]:
    reasons: Counter[str] = Counter()
    since, ranks = 0.0, []
    for one in patient.ranks:
        others = {
            reason: blocks
            for reason, blocks in one.state.left_out.items()
            if reason.partition(":")[0] not in (_BLOCK_SIZE, *UNSURE)
            and not (_is_dropping(one) and reason == troubles_of(one).reason)  # said as such
        }
        reasons.update(others)
        if others:
            since = since or one.state.left_out_at
            ranks.append(one.registration.dp_rank)
    if reasons:
        got = ", ".join(f"{reason} ({blocks})" for reason, blocks in sorted(reasons.items()))
        words = [reason_of(reason) for reason in sorted(reasons)]
        yield Diagnosis(
            Code.LEFT_OUT,
            f"blocks that it announces cannot be used, and no answer counts them: {got}",
            "; ".join(dict.fromkeys(one.remedy for one in words)),
            expected="; ".join(one.expected for one in words),
            got=got,
            since=since,
            ranks=tuple(ranks),
        )


def _attention_only(patient: Patient, now: float) -> Iterator[Diagnosis]:
    hybrid = [one for one in patient.ranks if one.state.is_attention_only]
    if hybrid:
        blocks = sum(one.state.sparse_blocks or 0 for one in hybrid)
        yield Diagnosis(
            Code.ATTENTION_ONLY,
            f"its model is a hybrid: {blocks} blocks of sliding windows, of chunks or of recurrent"
            " states were announced, which no answer counts. An answer is of full attention alone,"
            " and it may reuse less of a prompt than that, or nothing",
            "nothing is broken: route as before, and report `cached_tokens` to POST /feedback,"
            " which shows how much less it reuses. For `exact` answers of windows and chunks start"
            " vLLM with --disable-hybrid-kv-cache-manager, which takes more memory; of recurrent"
            " states (Mamba) there are none",
            expected="blocks of full attention alone",
            got=f"{blocks} of other groups",
            ranks=ranks_of(hybrid),
            is_property=True,
        )


def _named(names: Sequence[str]) -> str:
    some, more = ", ".join(names[:NAMES_SHOWN_MAX]), len(names) - NAMES_SHOWN_MAX
    return f"{some}{f' and {more} more' if more > 0 else ''}"


def _adapter_reloaded(patient: Patient, now: float) -> Iterator[Diagnosis]:
    if patient.adapters and any(one.registration.reloads_adapters for one in patient.ranks):
        yield Diagnosis(
            Code.ADAPTER_RELOADED,
            "SGLang that loads an adapter again finds none of the blocks that it has under it, and"
            " no event says so, so answers about adapters are `unconfirmed`, those about the base"
            f" model are not: {_named(patient.adapters)}",
            "where no adapter is loaded again under its name (--max-loaded-loras has room for all,"
            " and no POST /load_lora_adapter names one that was there), register it with"
            f" `lora_reload` `none`{_AT_ONCE}; else route as before",
            expected="`lora_reload` `none`",
            got="blocks under adapters",
            is_property=True,
        )


def _adapter_unknown(patient: Patient, now: float) -> Iterator[Diagnosis]:
    names = patient.unknown_adapters
    if names:
        yield Diagnosis(
            Code.ADAPTER_UNKNOWN,
            "a pool has blocks under adapters of which nothing says whether it has loaded them, so"
            " answers about these are `unconfirmed`, and count nothing of the pool for it:"
            f" {_named(names)}",
            "let it serve the adapter once, or register it with that `lora_name` where it serves no"
            " other",
            expected="a `lora_name`, or blocks of its own under the adapter",
            got="neither",
        )


def _reads_unknown(patient: Patient, now: float) -> Iterator[Diagnosis]:
    if names := patient.unknown_reads:
        yield Diagnosis(
            Code.READS_UNKNOWN,
            "its `reads` names instances that are not registered with its tenant, model, block size"
            f" and salt, so nothing of these counts for it: {_named(names)}",
            "register them, a pool once for each model and block size; or register it with `reads`"
            f" that has the `instance_id` of each whose shared blocks it reads{_AT_ONCE}",
            expected="registered instances",
            got=_named(names),
        )


def _is_dropping(one: ServiceView) -> bool:
    """Whether something of it was dropped, and nothing has healed that."""
    state = one.state
    is_open = state.degraded_since is not None or bool(state.left_out)
    return troubles_of(one).dropped > 0 and (
        is_open or not has_published(one) or one.standing.reason == Doubt.UNREADABLE
    )


def _dropped(patient: Patient, now: float) -> Iterator[Diagnosis]:
    by_reason: dict[str, list[ServiceView]] = {}
    for one in filter(_is_dropping, patient.ranks):
        by_reason.setdefault(troubles_of(one).reason, []).append(one)
    for reason, ranks in sorted(by_reason.items()):
        words, last = reason_of(reason), troubles_of(ranks[-1])
        times = sum(troubles_of(one).dropped for one in ranks)
        yield Diagnosis(
            Code.DROPPED,
            f"{times} messages, batches or events of it were dropped, and no answer counts what"
            f" they said. The last: {reason}: {last.detail}",
            f"{words.remedy}. What was dropped counts again after this: {CLEAR}",
            expected=words.expected,
            got=last.detail,
            since=min(one.standing.since for one in ranks),
            ranks=ranks_of(ranks),
        )


def _repeated_numbers(patient: Patient, now: float) -> Iterator[Diagnosis]:
    repeating = [one for one in patient.ranks if troubles_of(one).repeats >= REPEATS_DOUBTED]
    if repeating:
        last = troubles_of(repeating[0])
        yield Diagnosis(
            Code.REPEATED_NUMBERS,
            f"every batch has number {last.number}: {last.repeats + 1} came one after the other"
            " under that number, so a lost batch does not show, and each later one begins the"
            " cache anew",
            "let the publisher count its batches from 0 on, one number a batch; docs/compatibility"
            ".md, `On the wire`, says what a publisher sends",
            expected="0, 1, 2, ...",
            got=f"{last.number}, {last.number}, {last.number}, ...",
            ranks=ranks_of(repeating),
        )


def _lost_batches(patient: Patient, now: float) -> Iterator[Diagnosis]:
    lost = [one for one in patient.ranks if one.state.degraded_since is not None]
    if lost:
        name, number = patient.stream.instance_id, max(one.state.sequence for one in lost)
        reverse = int.from_bytes(max(number, 0).to_bytes(8, "little"), "big")
        is_reverse = number >= _UNLIKELY > reverse
        yield Diagnosis(
            Code.LOST_BATCHES,
            "batches of it are lost: blocks may be missing, and evicted ones may still be listed"
            + (f". Its numbers are little-endian: {number} is {reverse}" if is_reverse else ""),
            "let the publisher send its number big-endian, `number.to_bytes(8, 'big')`"
            if is_reverse
            else f"`reprise gaps --instance {name}` says when and why; {CLEAR}; with a"
            " `replay_endpoint` registered, what is missed is asked for again",
            expected="batches numbered 0, 1, 2, ..., each of which comes",
            got=f"numbers missing up to {number}",
            since=min(one.state.degraded_at for one in lost),
            ranks=ranks_of(lost),
        )


# What does not come


def _is_down(one: ServiceView, now: float) -> bool:
    activity, since = one.activity
    if one.standing.reason == Doubt.NO_ENDPOINT:  # said as such
        return False
    return activity == Activity.DISCONNECTED and 0 < since < now - UNREACHED_S


def _unreached(patient: Patient, now: float) -> Iterator[Diagnosis]:
    down = [one for one in patient.ranks if _is_down(one, now)]
    never = [one for one in down if not has_published(one) and not troubles_of(one).dropped]
    if never:
        trouble = next(filter(None, (troubles_of(one).link for one in never)), "")
        named_wrong = f"the host name is wrong, or is not known on its bridge's host: {trouble}"
        again = register_again(patient, "an `endpoint` that its bridge's host can look up")
        if trouble and never[0].registration.has_stream:
            named_wrong = f"its server says, or the system: {trouble}"
            is_lmcache = never[0].registration.kind == LMCACHE_TOPIC
            server = "the server, and the engine with --kv-events-config"
            again = (
                f"start {'LMCache with --transport grpc' if is_lmcache else server}; or"
                f" {register_again(patient, 'the `endpoint` of what streams its events')}"
            )
        start = f"{switch_on(never[0])}; or register the address that this host reaches it at"
        yield Diagnosis(
            Code.UNREACHED,
            "no link to it has come up, and nothing of it has ever come:"
            f" {named_wrong if trouble else _why_unreached(never)}",
            again if trouble else start,
            expected=endpoints_of(never),
            got=trouble or "no answer",
            since=min(one.activity[1] for one in never),
            ranks=ranks_of(never),
        )
    gone = [one for one in down if one not in never]
    if gone:
        yield Diagnosis(
            Code.DISCONNECTED,
            "its link is down: the engine has ended, or the network is cut",
            "start it again; or POST /unregister"
            f" {named(patient, gone[0].registration.dp_rank)}, where it is gone for good",
            expected=endpoints_of(gone),
            got="no answer",
            since=min(one.activity[1] for one in gone),
            ranks=ranks_of(gone),
        )


def _why_unreached(never: list[ServiceView]) -> str:
    for one in never:
        facts = facts_of(one)
        said = "" if facts is None else facts.endpoint
        if said and not said.startswith("ipc://") and not is_wildcard(said):
            return (
                f"it says that it publishes at {said}, which it connects to and does not bind, so"
                f" nobody hears it. {_BINDS}"
            )
    if any(facts_of(one) not in (None, EngineFacts()) for one in never):
        return (
            "the engine answers over HTTP, so it is up, and its events are not there: it publishes"
            f" elsewhere, or connects where it is to bind, or its events are off. {_BINDS}"
        )
    return f"it is not up, or does not listen there. {_BINDS}"


def _no_engine(patient: Patient, now: float) -> Iterator[Diagnosis]:
    others = [one for one in patient.ranks if troubles_of(one).http]
    if others:
        url = others[0].registration.http_url
        yield Diagnosis(
            Code.NO_ENGINE,
            f"is this {patient.kind}? Something answers at its `http_endpoint` {url}, and says"
            " nothing that such an engine says",
            register_again(patient, "the `http_endpoint` of the engine's own HTTP server")
            + ", or without one: it is optional",
            expected=f"the HTTP server of a {patient.kind} engine",
            got=troubles_of(others[0]).http,
            ranks=ranks_of(others),
        )


def _dead_replay(patient: Patient, now: float) -> Iterator[Diagnosis]:
    dead = [
        one for one in patient.ranks if troubles_of(one).has_dead_replay and not _is_down(one, now)
    ]
    if dead:
        where = ", ".join(one.registration.replay_endpoint for one in dead)
        yield Diagnosis(
            Code.REPLAY,
            f"its replay socket has never answered: nothing listens at {where}. Batches that are"
            " lost cannot be asked for again",
            "look whether the port is right and no firewall is between; start vLLM with"
            " `replay_endpoint` in its --kv-events-config; or"
            f" {register_again(patient, 'no `replay_endpoint`: it is optional')}",
            expected="an answer to a replay request",
            got="no answer",
            ranks=ranks_of(dead),
        )


_OF_LMCACHE: Final = _Words(
    Code.NEVER_REMOVED,
    "it is registered with `kv_offloading` `lmcache`: LMCache does not say all that its server has"
    " lost, or what others have stored there, so answers may count blocks that are gone",
    "none is needed: it does not end. Route as before, and report `cached_tokens` to POST"
    " /feedback, which shows how much less it reuses",
)


def _doubted(patient: Patient, now: float) -> Iterator[Diagnosis]:
    by_reason: dict[str, list[ServiceView]] = {}
    for one in patient.ranks:
        if one.registration.has_events and is_settled(one, now) and not _is_said(patient, one):
            by_reason.setdefault(str(one.standing.reason), []).append(one)
    for reason, ranks in sorted(by_reason.items()):
        words, said = _DOUBTS.get(reason), [one.registration for one in ranks]
        is_said = reason == Doubt.NO_REPLAY or (
            reason == Doubt.GROUPS_UNKNOWN and all(one.kv_cache_groups == "several" for one in said)
        )
        if reason == Doubt.NEVER_REMOVED and all(one.kv_offloading == "lmcache" for one in said):
            words, is_said = _OF_LMCACHE, True
        if words is not None:
            since = min(one.standing.since for one in ranks)
            yield Diagnosis(
                words.code,
                words.cause,
                words.remedy,
                got=_heard_of(patient) if reason == Doubt.RANK_MISSING else reason,
                since=since,
                ranks=ranks_of(ranks),
                is_property=is_said,
            )


def _heard_of(patient: Patient) -> str:
    return f"batches of rank {', '.join(map(str, _missing_ranks(patient)[:ENGINE_RANKS_MAX]))}"


def _missing_ranks(patient: Patient) -> list[int]:
    heard = {
        rank
        for one in patient.ranks
        for rank in (*one.state.other_ranks, *troubles_of(one).other_ranks)
    }
    return sorted(heard - {one.registration.dp_rank for one in patient.ranks})


def _is_said(patient: Patient, one: ServiceView) -> bool:
    """Whether its doubt is another finding."""
    if one.standing.reason == Doubt.OUTCOMES_DIFFER:
        return patient.recent.contradict
    if one.standing.reason == Doubt.RANK_MISSING:
        facts = facts_of(one)  # which name it, too
        return facts is not None and bool(facts.ranks) and not _missing_ranks(patient)
    return one.standing.reason == Doubt.REPLAY_SILENT and troubles_of(one).has_dead_replay


def _no_events(patient: Patient, now: float) -> Iterator[Diagnosis]:
    silent = [
        one
        for one in patient.ranks
        if one.registration.has_events
        and not has_published(one)
        and one.activity[0] in (Activity.SILENT, Activity.ACTIVE)
    ]
    if silent and patient.is_judged:
        yield Diagnosis(
            Code.NO_EVENTS,
            f"it has served {patient.served.reported} requests, its link is up, and it has"
            " published nothing: events are switched off, or prefix caching is, or another process"
            " listens at that address",
            switch_on(silent[0]),
            expected="events",
            got="none",
            ranks=ranks_of(silent),
        )


def _never_removes(patient: Patient, now: float) -> Iterator[Diagnosis]:
    capacity = patient.capacity_blocks
    if not capacity or patient.entries <= DOCTOR_OVERFULL * capacity:
        return
    on_gpu = round(patient.entries * patient.on_gpu())
    if on_gpu > DOCTOR_OVERFULL * capacity:
        yield Diagnosis(
            Code.NEVER_REMOVES,
            f"the index has {on_gpu} blocks of it on its GPUs, and it has room for {capacity}: it"
            " does not say which blocks it removes, and the index lists ghosts",
            f"{CLEAR}; look whether its events have BlockRemoved (`reprise tail`), and whether a"
            " relay or proxy between drops them",
            expected=f"at most {capacity}",
            got=str(on_gpu),
        )


RECEIVED: Final = (
    _block_size,
    _dropped,
    _repeated_numbers,
    _left_out,
    _attention_only,
    _adapter_unknown,
    _reads_unknown,
    _adapter_reloaded,
    _lost_batches,
    _unreached,
    _no_engine,
    _dead_replay,
    _doubted,
    _no_events,
    _never_removes,
)
"""What of it is looked at, causes before what comes of them."""
