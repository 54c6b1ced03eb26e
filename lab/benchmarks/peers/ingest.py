"""The load of `embedded.ingest` into Dynamo's indexer: by its own registration, over its own ZMQ
socket, until its own `/query` shows the last prompt.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.query import Server
from lab.benchmarks.embedded.service import MODEL, until
from lab.benchmarks.peers.dynamo import DynamoIndexer
from lab.benchmarks.peers.queries import dynamo_contender
from lab.benchmarks.sizes import BLOCK_SIZE
from lab.engines.wire import BlockStored
from lab.traffic.event_load import LoadPlan, plan_events

POLL_S: Final = 0.02
CHECKED: Final = 16
"""Prompts whose answers are looked at, beside the last one's."""


class Phase(NamedTuple):
    """How long one took, of the wall and of the process, and how long it was sent."""

    blocks: int
    seconds: float
    cpu_s: float
    sending_s: float


def checked_prompts(plan: LoadPlan) -> list[list[int]]:
    """Some whole prompts of the plan, the last one last."""
    chains = -(-plan.blocks // (plan.blocks_per_event * plan.chain_events))
    wanted = {number * chains // CHECKED for number in range(CHECKED)} | {chains - 1}
    prompts: dict[int, list[int]] = {}
    stored = (event for event in plan_events(plan) if isinstance(event, BlockStored))
    for number, event in enumerate(stored):
        if number // plan.chain_events in wanted:
            prompts.setdefault(number // plan.chain_events, []).extend(event.token_ids)
    return [prompts[number] for number in sorted(prompts)]


def run_once(plan: LoadPlan, prompts: Sequence[list[int]], phases: Iterable[str]) -> list[Phase]:
    """Publishes the phases of a plan, what is stored first, into a new indexer.

    Raises:
        TimeoutError: its answers never became those of what was published.
    """
    found: list[Phase] = []
    with DynamoIndexer() as dynamo, Publisher(plan) as publisher:
        one = dynamo_contender(Server(dynamo.address, dynamo.pid))
        publisher.when_encoded()
        dynamo.follow_all(MODEL, publisher.endpoints, BLOCK_SIZE)
        publisher.when_subscribed()

        def shows(prompt: list[int], *, held: bool) -> bool:
            longest = max(one.longest(one.server.ask(one.request(prompt))), default=0)
            return longest == (len(prompt) if held else 0)

        for number, _ in enumerate(phases):
            held = number == 0
            before = dynamo.cpu_s()
            sent = publisher.send()
            until(lambda: shows(prompts[-1], held=held), poll_s=POLL_S)  # noqa: B023
            seconds, cpu_s = time.monotonic() - sent.started, dynamo.cpu_s() - before
            until(lambda: all(shows(one, held=held) for one in prompts), poll_s=0.1)  # noqa: B023
            found.append(Phase(sent.blocks, seconds, cpu_s, sent.seconds))
    return found
