"""Engines that are named by the address of their HTTP server alone: each is asked what it is, and
registered as that. Asyncio; one loop.

An engine is asked again and again: another process may have its address by then, with another model
or with events switched on; and at once when its link or its process is seen to be another. What it
lacks is said once, with the flag of the engine that helps.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from bridge.engine_http.address import read_base_url
from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.engine import EngineHttp, NoEngineError
from query_api.ports import PublisherRegistry, View
from schemas.engine_facts import EngineFacts
from schemas.errors import NotRegisteredError, RepriseError, StorageError
from schemas.registration import (
    NO_EVENTS,
    SGLANG,
    VLLM,
    PublisherKind,
    Registration,
    Unregistration,
)
from schemas.troubles import shortened

ENROLL_AGAIN_S: Final = 30.0  # how often an engine is asked whether it is still the same
ENROLL_RETRY_S: Final = 2.0  # how often one is asked that does not answer, or could not be written
ENROLL_LOOK_S: Final = 1.0  # between two looks whether links or processes are others

BLOCK_SIZE: Final = 16
"""Of an engine that does not say it; it has no part in the index then."""

_KINDS: Final = (VLLM, SGLANG)

_OPENAI_BASE: Final = "/v1"
"""What a client of OpenAI's has at the end of its base URL, and an engine's address has not."""

_EVENT_FLAGS: Final = {
    VLLM: """--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","""
    """"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'""",
    SGLANG: """--kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","""
    """"replay_endpoint":"tcp://*:5558"}'""",
}

logger = logging.getLogger(__name__)


class EngineState(StrEnum):
    """What is known of an engine that was named by its address."""

    ASKED = "asked"
    """It has not answered yet."""
    SILENT = "silent"
    """It does not answer."""
    UNKNOWN = "unknown"
    """It answers, and not as an engine that can be asked what it is."""
    REFUSED = "refused"
    """It cannot be registered as what it is."""
    BY_LOAD = "by_load"
    """It is registered as one without events."""
    FOLLOWED = "followed"
    """It is registered, and its events are followed."""


class EnrolledEngine(NamedTuple):
    """One of them.

    Attributes:
        lacks: what it lacks, and what to do; "" for nothing.
    """

    base_url: str
    state: EngineState
    lacks: str = ""


class _EngineAnswer(NamedTuple):
    kind: PublisherKind
    facts: EngineFacts


class Enrollment:
    """See the module.

    Args:
        engines: base URLs.
        view: knows who is registered.
        registry: takes the registrations.
        retry_s: see ENROLL_RETRY_S.
        again_s: see ENROLL_AGAIN_S.

    Attributes:
        faults: unexpected errors.
    """

    def __init__(
        self,
        engines: Sequence[str],
        view: View,
        registry: PublisherRegistry,
        http: EngineHttp,
        *,
        retry_s: float = ENROLL_RETRY_S,
        again_s: float = ENROLL_AGAIN_S,
    ) -> None:
        self.faults = 0
        self._view = view
        self._registry = registry
        self._http = http
        self._retry_s = retry_s
        self._again_s = again_s
        self._known = {url: EnrolledEngine(url, EngineState.ASKED) for url in engines}
        self._changed = {url: asyncio.Event() for url in engines}
        self._lives: dict[str, list[tuple[int, bool | None]]] = {}

    @property
    def engines(self) -> list[EnrolledEngine]:
        """All of them, in the order in which they were named."""
        return list(self._known.values())

    async def run(self) -> None:
        """Asks until it is cancelled."""
        await asyncio.gather(self._watch(), *map(self._enroll, list(self._known)))

    async def _watch(self) -> None:
        """What another process serves is not to be answered for long by what was registered."""
        while True:
            try:
                self.look()
            except Exception:
                self.faults += 1
                logger.exception("Unexpected error while links were looked at; looking again")
            await asyncio.sleep(ENROLL_LOOK_S)

    def look(self) -> None:
        """Has those asked at once whose link or process is another. Cost O(publishers)."""
        lives: dict[str, list[tuple[int, bool | None]]] = {}
        for one in self._view.services():
            life = (one.state.incarnation, one.connected)
            lives.setdefault(one.registration.http_url, []).append(life)
        for base_url, changed in self._changed.items():
            if lives.get(base_url) != self._lives.get(base_url):
                changed.set()
        self._lives = lives

    async def _enroll(self, base_url: str) -> None:
        while True:
            pause_s = self._retry_s
            try:
                await self.ask(base_url)
                pause_s = self._again_s
            except NoAnswerError as error:
                self._note(EnrolledEngine(base_url, EngineState.SILENT, shortened(str(error))))
            except NoEngineError as error:
                self._note(EnrolledEngine(base_url, EngineState.UNKNOWN, shortened(str(error))))
            except StorageError as error:  # it is not read yet, or cannot be written now
                logger.debug("Cannot register %s yet: %s", base_url, error)
            except RepriseError as error:
                self._note(EnrolledEngine(base_url, EngineState.REFUSED, shortened(str(error))))
            except Exception:
                self.faults += 1
                logger.exception("Unexpected error while %s was asked; asking again", base_url)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed[base_url].wait()
            self._changed[base_url].clear()

    async def ask(self, base_url: str) -> None:
        """Asks an engine what it is, and registers it.

        Raises:
            NoAnswerError: it does not answer.
            NoEngineError: it answers as no engine does.
            RepriseError: it cannot be registered.
        """
        kind, facts = await self._answered(base_url)
        lacks = _lacks(kind, facts)
        follows = bool(facts.publishes and facts.block_size)
        known = {one.publisher: one for one in self._view.registered() if one.http_url == base_url}
        found = []
        for rank in (facts.ranks or (0,)) if follows else (0,):
            said = Registration(
                endpoint=base_url if follows else "",
                kind=kind if follows else NO_EVENTS,
                model_name=facts.models[0],
                instance_id=read_base_url(base_url).authority,
                block_size=facts.block_size or BLOCK_SIZE,
                dp_rank=rank,
                http_endpoint="" if follows else base_url,
                kv_capacity_tokens=facts.blocks * facts.block_size,
            )
            found.append(_with_words(said, known.get(said.publisher)))
        for one in found:
            await self._registry.register(one, replace=True)
        await self._forget_others(base_url, found)
        state = EngineState.FOLLOWED if follows else EngineState.BY_LOAD
        self._note(EnrolledEngine(base_url, state, lacks))

    async def _forget_others(self, base_url: str, found: list[Registration]) -> None:
        """What another process at that address was registered as."""
        publishers = {one.publisher for one in found}
        for one in self._view.registered():
            is_here = (one.instance_id, one.http_url) == (found[0].instance_id, base_url)
            if is_here and one.publisher not in publishers:
                with suppress(NotRegisteredError):
                    await self._registry.unregister(Unregistration.of(one))

    async def _answered(self, base_url: str) -> _EngineAnswer:
        """Whose engine it is, and what it says."""
        found = []
        refused: NoEngineError | None = None
        for kind in _KINDS:
            registration = Registration(
                endpoint=base_url, kind=kind, model_name="?", instance_id="?", block_size=1
            )
            try:
                bodies = await self._http.bodies(registration)
            except NoEngineError as error:
                refused = error
                continue
            facts = self._http.facts(registration, bodies)
            if facts.ranks and 0 not in facts.ranks:  # one of several API servers
                registration = msgspec.structs.replace(registration, dp_rank=facts.ranks[0])
                facts = self._http.facts(registration, bodies)
            if facts.models:
                found.append(_EngineAnswer(kind, facts))
        if not found:
            text = "it names no model in /v1/models or /server_info"
            text = str(refused or f"{text}; where it wants a key, engines.keys names that")
            if base_url.endswith(_OPENAI_BASE):
                text += f". Leave out {_OPENAI_BASE}: {base_url.removesuffix(_OPENAI_BASE)}"
            raise NoEngineError(text) from refused
        return max(found, key=lambda one: (bool(one.facts.block_size), bool(one.facts.publishes)))

    def _note(self, enrolled: EnrolledEngine) -> None:
        if self._known[enrolled.base_url] == enrolled:
            return
        self._known[enrolled.base_url] = enrolled
        base_url, state, lacks = enrolled
        if state is EngineState.FOLLOWED:
            logger.info("%s is registered%s", base_url, f", but {lacks}" if lacks else "")
        elif state is EngineState.BY_LOAD:
            text = "%s is registered as an engine without events: %s. Decisions alone say what it"
            logger.warning(text + " holds until then", base_url, lacks)
        elif any(one.http_url == base_url for one in self._view.registered()):
            text = (
                "%s is registered, and cannot be asked what it is now (%s): %s. It is asked again"
            )
            logger.warning(text, base_url, state, lacks)
        else:
            text = "%s is not registered (%s): %s. It is asked again"
            logger.warning(text, base_url, state, lacks)


def _with_words(said: Registration, known: Registration | None) -> Registration:
    """What an engine says of itself, and what somebody has registered beside that."""
    if known is None or known.kind != said.kind:
        return said
    return msgspec.structs.replace(
        known,
        endpoint=said.endpoint,
        http_endpoint=said.http_endpoint,
        kv_capacity_tokens=said.kv_capacity_tokens,
    )


def _lacks(kind: PublisherKind, facts: EngineFacts) -> str:
    """What an engine lacks, with its flag that helps; "" for nothing."""
    found = []
    if facts.publishes is None and kind == VLLM:
        found.append("it does not say where it publishes, as vLLM does from 0.31.0 on")
    elif not facts.publishes:
        found.append(f"it publishes no KV-cache events: start it with {_EVENT_FLAGS[kind]}")
    elif not facts.replay_endpoint:
        found.append("it replays no events: add replay_endpoint to its --kv-events-config")
    if not facts.block_size:
        found.append("it does not say its block size: start it without --disable-log-stats")
    if facts.caches is False:
        flag = "--enable-prefix-caching" if kind == VLLM else "no --disable-radix-cache"
        found.append(f"its prefix caching is off: start it with {flag}")
    return "; ".join(found)
