"""What upgrades are tried with: an older Reprise, routers that ask all the time, and the judgement
of all that they were told.
"""

import bisect
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from devtools.upgrades import VARIABLE
from lab.engines.cache import EngineCache, Offload
from schemas.codec import decode_log_record
from schemas.limits import OFFSET_MAX, STALE_S
from schemas.records import EventsRecord
from schemas.routing_records import decision_id, parse_decision_id
from tests.deployment import Logged, query_for
from tests.load import Engine, Load
from tests.processes import THIS

ROUTERS = 2
PAUSE_S = 0.03
WAIT_S = 30.0

_PASSED_OVER = (404, 503)
"""A service that is not ready, or of a version that knows nothing of the path."""
_GONE = (OSError, ValueError, http.client.HTTPException)
"""A service that ends, or has ended while it answered."""


def older() -> tuple[str, ...]:
    """The program of the older one; this one where none is named."""
    named = os.environ.get(VARIABLE, "")
    return (named,) if named else THIS


_DIGEST_OF = """
import json, sys
try:
    from routing.fold.fold import RoutingFold
except ImportError:  # to 0.2.0
    from streams.routing.fold import RoutingFold
from schemas.codec import decode_routing
fold = RoutingFold()
for offset, value in json.load(sys.stdin):
    fold.apply(offset, decode_routing(bytes.fromhex(value)))
print(fold.digest)
"""


def routing_digest(program: Sequence[str], log: Iterable[tuple[int, bytes]]) -> str:
    """The digest of a fresh fold of the routing log, by the code of a version: what a fold knows
    grows with versions, and its digest with it.
    """
    is_this = tuple(program) == THIS
    python = sys.executable if is_this else str(Path(program[0]).with_name("python"))
    found = subprocess.run(
        [python, "-c", _DIGEST_OF],
        input=json.dumps([(offset, value.hex()) for offset, value in log]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=None if is_this else "/",
    )
    return found.stdout.strip()


class Served(Engine):
    """An engine that knows what it held after each of its batches."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(instance_id)
        self._prompts: list[Sequence[int]] = []
        self._sent: list[tuple[float, int]] = []

    def serve(self, prompt: Sequence[int]) -> None:
        super().serve(prompt)
        self._prompts.append(prompt)
        self.note_sent()

    def note_sent(self) -> None:
        """Notes how many batches have been sent by now: all but the one that was numbered last."""
        last = self.publisher.published - 2
        self._sent.append((time.monotonic(), last))

    def sent_by(self, moment: float) -> int:
        """The number of the last batch that is known to have been sent by then; -1 for none."""
        place = bisect.bisect_right(self._sent, (moment, OFFSET_MAX)) - 1
        return self._sent[place][1] if place >= 0 else -1

    def caches(self) -> Iterator[EngineCache]:
        """What it held, as of each number of a batch from -1 on: the same cache each time, which
        changes.
        """
        cache = EngineCache(self.cache.sizes, offload=Offload.WRITE_THROUGH)
        yield cache
        for prompt in self._prompts:
            cache.run(prompt)
            yield cache


class Service(Protocol):
    """A service that routers ask: the embedded one, or a replica."""

    base_url: str


class Told(NamedTuple):
    """An answer to a query.

    Attributes:
        by: the process whose it is.
        position: by partition, what the table of who answered had folded, at least.
        matched: tokens, by instance.
    """

    by: object
    asked_at: float
    prompt: int
    state: str
    position: Mapping[int, int]
    matched: Mapping[str, int]


class Answer(NamedTuple):
    """What a service answered."""

    document: Any
    headers: Message


class Key(NamedTuple):
    """A decision."""

    run: int
    number: int


class Routers:
    """Each has prompts looked up and routed, by any service, and reports what came of that.

    A service that is away, or not ready, is passed over, as a router does; that nobody answers a
    query is an error.

    Attributes:
        told: answers to `/query`.
        decided: decisions of `/route`.
    """

    def __init__(
        self, seed: int, services: Sequence[Service], load: Load, *, patience_s: float = 0.0
    ) -> None:
        """`services` may change at any time; `patience_s` is for how long nobody has to answer."""
        self.told: list[Told] = []
        self.decided: list[Key] = []
        self.errors: list[BaseException] = []
        self._services = services
        self._load = load
        self._patience_s = patience_s
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + number),))
            for number in range(ROUTERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(WAIT_S)
        assert self.errors == []

    def told_exact(self) -> Callable[[], bool]:
        """Whether answers of all services to queries of from now on say so."""
        now, begin = time.monotonic(), len(self.told)

        def is_told() -> bool:
            assert self.errors == []
            new = [one for one in self.told[begin:] if one.asked_at > now]
            return {one.by for one in new if one.state == "exact"} >= set(self._services)

        return is_told

    def _run(self, chance: random.Random) -> None:
        try:
            while not self._stopping.wait(PAUSE_S):
                self._query(chance)
                self._route(chance)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _query(self, chance: random.Random) -> None:
        number = chance.randrange(300)
        began = time.monotonic()
        while True:
            asked_at = time.monotonic()
            answered = self._any(chance, "/query", query_for(self._load.prompt(number)))
            if answered is not None:
                break
            assert time.monotonic() < began + self._patience_s, "nobody answers"
            time.sleep(PAUSE_S)
        service, (document, headers) = answered
        found = document.get("default", {})
        self.told.append(
            Told(
                service,
                asked_at,
                number,
                headers["reprise-state"],
                position_of(headers["reprise-position"]),
                {name: one["longest_matched"] for name, one in found.items()},
            )
        )

    def _route(self, chance: random.Random) -> None:
        body = query_for(self._load.prompt(chance.randrange(300)))
        answered = self._any(chance, "/route", body)
        if answered is None:  # an older one does not route
            return
        key = Key(*(parse_decision_id(answered[1].document["decision_id"]) or (-1, -1)))
        self.decided.append(key)
        for event in chance.choice((["first_token", "completed"], ["completed"], ["failed"], [])):
            feedback = {"decision_id": decision_id(*key), "event": event}
            for _ in range(20):  # who was just started does not know of the decision yet
                answered = self._any(chance, "/feedback", feedback)
                if answered is None or not answered[1].document["unknown"]:
                    break
                time.sleep(PAUSE_S)

    def _any(
        self, chance: random.Random, path: str, fields: object
    ) -> tuple[Service, Answer] | None:
        """Who has answered, and what; None where nobody can."""
        services = list(self._services)
        chance.shuffle(services)
        for service in services:
            try:
                return service, post(service.base_url + path, fields)
            except urllib.error.HTTPError as error:
                if error.code not in _PASSED_OVER:
                    raise AssertionError(error.read()) from error
            except _GONE:
                pass
        return None


def post(url: str, fields: object) -> Answer:
    """Posts JSON."""
    content = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(fields).encode(), content)
    with urllib.request.urlopen(request, timeout=20) as response:
        return Answer(json.loads(response.read()), response.headers)


def position_of(text: str) -> dict[int, int]:
    """By partition, the last record that an answer has."""
    pairs = (one.split(":") for one in text.split(",") if one)
    return {int(partition): int(offset) for partition, offset in pairs}


# The judgement


class Course:
    """Which batches of an engine a log has up to where; of the one partition that it is in."""

    def __init__(self, instance_id: str, log: Iterable[Logged]) -> None:
        self.partition = 0
        self._offsets: list[int] = []
        self._sequences: list[int] = []
        for logged in log:
            record = decode_log_record(logged.value)
            if isinstance(record, EventsRecord) and record.stream.instance_id == instance_id:
                self.partition, offset = logged.place
                self._offsets.append(offset)
                self._sequences.append(record.last_sequence)

    def sequence_at(self, offset: int) -> int:
        """The number of the last batch up to there; -1 for none."""
        count = bisect.bisect_right(self._offsets, offset)
        return max(self._sequences[:count], default=-1)


def wrong_answers(
    told: Sequence[Told], engines: Iterable[Served], log: Sequence[Logged], load: Load
) -> list[str]:
    """Those that are not what an engine held itself after some batch between the one that the
    answer names and the next that the same service has named, and those that said `exact` without a
    batch of more than STALE_S before.

    A table is changed a batch of rows at a time, and says afterwards how far it is: so an answer
    may be ahead of what it says, by one flush.
    """
    found = []
    for engine in engines:
        course = Course(engine.instance_id, log)
        spans = _spans(told, course)
        right: dict[int, set[int]] = defaultdict(set)
        asked: dict[int, list[int]] = defaultdict(list)
        for number, (first, last) in enumerate(spans):
            for sequence in range(first, last + 1):
                asked[sequence].append(number)
        for sequence, cache in enumerate(engine.caches(), -1):
            for number in asked[sequence]:
                right[number].add(cache.longest_held(load.prompt(told[number].prompt)))
        for number, one in enumerate(told):
            matched = one.matched.get(engine.instance_id, 0)
            if matched not in right[number]:
                found.append(f"{engine.instance_id} had {right[number]}, not {matched}: {one}")
            if one.state == "exact":
                due = engine.sent_by(one.asked_at - STALE_S)
                if spans[number][1] < due:
                    found.append(f"{engine.instance_id} had sent {due} long before: {one}")
    return found


def _spans(told: Sequence[Told], course: Course) -> list[tuple[int, int]]:
    """For each answer the first and the last batch that it may be of."""
    named: dict[object, list[int]] = defaultdict(list)
    for one in told:
        named[one.by].append(one.position.get(course.partition, -1))
    for offsets in named.values():
        offsets.sort()
    found = []
    for one in told:
        offset, offsets = one.position.get(course.partition, -1), named[one.by]
        place = bisect.bisect_right(offsets, offset)
        following = offsets[place] if place < len(offsets) else OFFSET_MAX
        found.append((course.sequence_at(offset), course.sequence_at(following)))
    return found
