"""One reprise to keep in step with one namespace."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from bridge.delivery.complaints import Complaints
from bridge.engine_http.client import NoAnswerError
from console.service_client import RefusedError
from reprise.discovery.engines import (
    UID_LABEL,
    Engine,
    UnusableError,
    bodies,
    part,
    read_pod,
    read_slice,
)
from reprise.discovery.facts import PodFacts, ask_facts
from reprise.discovery.membership import Membership, PodSource
from reprise.discovery.object_follower import Object, ObjectFollower
from reprise.discovery.plan import make_plan
from reprise.discovery.registrar import PodRegistrar
from schemas.errors import EndpointError

DISCOVERY_LOOK_S: Final = 30.0  # between two comparisons with what is registered, without a change
DISCOVERY_GATHER_S: Final = 0.2  # that changes are gathered for

logger = logging.getLogger(__name__)


class PodCounts(NamedTuple):
    """What the last look found and did."""

    wanted: int
    registered: int
    unregistered: int
    failed: int


class MembershipSink:
    """A `Sink`: what a source says becomes membership."""

    def __init__(
        self,
        source: PodSource,
        read: Callable[[Object], list[Engine]],
        membership: Membership,
        said: "PodComplaints",
        when_changed: Callable[[], None],
    ) -> None:
        self._source = source
        self._read = read
        self._membership = membership
        self._said = said
        self._when_changed = when_changed

    def listed(self, objects: list[Object]) -> None:
        """See `Sink`."""
        engines = {_uid(one): self._engines(one) for one in objects if _uid(one)}
        self._membership.listed(self._source, engines, time.monotonic())
        self._when_changed()

    def changed(self, found: Object) -> None:
        """See `Sink`."""
        if _uid(found):
            engines = self._engines(found)
            self._membership.changed(self._source, _uid(found), engines, time.monotonic())
            self._when_changed()

    def deleted(self, found: Object) -> None:
        """See `Sink`."""
        self._membership.deleted(self._source, _uid(found), time.monotonic())
        self._when_changed()

    def _engines(self, found: Object) -> list[Engine]:
        try:
            return self._read(found)
        except UnusableError as error:
            self._said.about(_uid(found), f"{self._source.value} {_name(found)}: {error}")
            return []
        except (AttributeError, TypeError, ValueError) as error:  # nothing that an API server sends
            self._said.about(_uid(found), f"{self._source.value} {_name(found)}: {error!r}")
            return []


class PodComplaints:
    """What is wrong with pods, as `Complaints` logs it: once, while it lasts."""

    def __init__(self) -> None:
        self._complaints = Complaints()

    def about(self, uid: str, text: str) -> None:
        """Says it, where it is news."""
        now = time.monotonic()
        self._complaints.ended(now)
        if self._complaints.is_news(uid, text, now):
            logger.warning("Not registered: %s. It is tried again when that changes", text)


class PodDiscovery:
    """Keeps a service in step with the pods of a namespace.

    Args:
        namespace: whose pods.
        followers: of pods and slices; their sinks fill the membership.
        changed: set whenever the membership may be another one.
    """

    def __init__(
        self,
        namespace: str,
        membership: Membership,
        followers: list[ObjectFollower],
        registrar: PodRegistrar,
        changed: asyncio.Event,
        said: PodComplaints,
    ) -> None:
        self._namespace = namespace
        self._membership = membership
        self._followers = followers
        self._registrar = registrar
        self._changed = changed
        self._said = said
        self._facts: dict[str, PodFacts] = {}
        self._last: PodCounts | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for follower in self._followers:
                tasks.create_task(follower.run())
            while True:
                await self._wait()
                # Before all is listed, what is missing may only not have been told yet.
                if all(one.is_listed for one in self._followers):
                    await self._look()

    async def _wait(self) -> None:
        end_s = self._membership.next_end(time.monotonic())
        wait_s = DISCOVERY_LOOK_S if end_s is None else min(end_s, DISCOVERY_LOOK_S)
        try:
            async with asyncio.timeout(max(wait_s, DISCOVERY_GATHER_S)):
                await self._changed.wait()
                await asyncio.sleep(DISCOVERY_GATHER_S)
        except TimeoutError:
            pass
        self._changed.clear()

    async def _look(self) -> None:
        engines = self._membership.wanted(time.monotonic())
        wanted: list[dict[str, Any]] = []
        for engine in engines:
            try:
                facts = await self._facts_of(engine)
                wanted += bodies(engine, facts.model, facts.block_size)
            except UnusableError as error:
                self._said.about(engine.uid, f"pod {engine.pod}: {error}")
        uids = {engine.uid for engine in engines}
        self._facts = {uid: facts for uid, facts in self._facts.items() if uid in uids}
        try:
            plan = make_plan(wanted, await self._registrar.services(), self._namespace)
        except (RefusedError, NoAnswerError, EndpointError, ValueError, RecursionError) as error:
            logger.warning("Cannot ask %s: %s; trying again", self._registrar.url, error)
            return
        failed = 0
        for path, some in (("/unregister", plan.unregister), ("/register", plan.register)):
            for body in some:
                failed += not await self._send(path, body)
        done = PodCounts(len(wanted), len(plan.register), len(plan.unregister), failed)
        if done != self._last and (plan.register or plan.unregister or self._last is None):
            logger.info(
                "%d publishers wanted: %d registered, %d unregistered, %d refused",
                *(done.wanted, done.registered, done.unregistered, done.failed),
            )
        self._last = done

    async def _send(self, path: str, body: dict[str, Any]) -> bool:
        name = f"{body['instance_id']} rank {body['dp_rank']}"
        try:
            await self._registrar.send(path, body)
        except RefusedError as error:
            if path == "/unregister" and error.status == 404:
                return True  # somebody else was faster
            self._said.about(body.get("labels", {}).get(UID_LABEL, name), f"{name}: {error}")
            return False
        except (NoAnswerError, EndpointError) as error:
            logger.warning("Cannot ask %s: %s; trying again", self._registrar.url, error)
            return False
        return True

    async def _facts_of(self, engine: Engine) -> PodFacts:
        """Asked once; a pod keeps its model."""
        if "model" in engine.facts and "block-size" in engine.facts:
            return PodFacts("", 0)
        if engine.uid not in self._facts:
            self._facts[engine.uid] = await ask_facts(engine)
        return self._facts[engine.uid]


def read_pods(found: Object) -> list[Engine]:
    """Of a pod, as of a slice: a list."""
    engine = read_pod(found)
    return [] if engine is None else [engine]


def readers() -> dict[PodSource, Callable[[Object], list[Engine]]]:
    """How objects of each source are read."""
    return {PodSource.PODS: read_pods, PodSource.SLICES: read_slice}


def _uid(found: Object) -> str:
    return str(part(found, "metadata").get("uid") or "")


def _name(found: Object) -> str:
    return str(part(found, "metadata").get("name") or "")[:253]
