"""Whether answers have what was just published, and how soon: asked for samples of all messages."""

import threading
import time
from pathlib import Path
from typing import Final, Protocol

import msgspec

from lab.benchmarks.embedded.query import Client, instances_of, post_of
from lab.benchmarks.embedded.service import MODEL
from lab.benchmarks.scaling.fleet_process import FleetSent, PublishersJob, SentMessage, batch_of
from lab.benchmarks.sizes import BLOCK_SIZE

ASK_AGAIN_S: Final = 0.01


class PublisherOutput(Protocol):
    """The standard output of a process of publishers."""

    def readline(self) -> bytes:
        """A line, b"" at the end."""
        ...


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message that was asked for.

    Attributes:
        at: when it was sent, on the monotonic clock.
        seconds: from then until an answer had exactly its blocks, of exactly its publisher; None
            where none had within the time.
        asked: queries until then.
        removed_shown: whether an answer still had the blocks that the same message removed.
        wrong: an answer with blocks of another publisher, or with another number of tokens.
    """

    at: float
    seconds: float | None
    asked: int
    removed_shown: bool
    wrong: str


def instance_name(publisher: int) -> str:
    """Under which a publisher is registered."""
    return f"fleet-{publisher}"


class Prober(threading.Thread):
    """Reads what one process of publishers tells, and asks for it; ends with its `FleetSent`.

    Attributes:
        answered: what became of the messages that were told, in order.
        sent: what the process says at its end.
        error: what ended it before that, "" for nothing.
    """

    def __init__(
        self,
        job: PublishersJob,
        heard: PublisherOutput,
        addresses: list[tuple[str, int]],
        found_s: float,
    ) -> None:
        """Args:
        job: of the process.
        heard: its standard output.
        addresses: the service of each publisher of the job, in order.
        found_s: how long an answer may take to have the blocks.
        """
        super().__init__(name="prober", daemon=True)
        self._job = job
        self._heard = heard
        self._addresses = addresses
        self._found_s = found_s
        self.answered: list[ProbeResult] = []
        self.sent: FleetSent | None = None
        self.error = ""

    def run(self) -> None:
        """Of the thread."""
        decoder = msgspec.json.Decoder(SentMessage | FleetSent)
        try:
            while line := self._heard.readline():
                told = decoder.decode(line)
                if isinstance(told, FleetSent):
                    self.sent = told
                    return
                self.answered.append(self._ask(told))
            self.error = "the publishers' process has ended"
        except (OSError, RuntimeError, ValueError, msgspec.MsgspecError) as error:
            self.error = repr(error)

    def _ask(self, told: SentMessage) -> ProbeResult:
        job = self._job
        batch = batch_of(job.seed, told.publisher, told.sequence, job.blocks)
        expected = {instance_name(told.publisher): job.blocks * BLOCK_SIZE}
        client = Client(self._addresses[told.publisher - job.first])
        try:
            asked = 0
            while True:
                found = _matches(client, batch.tokens)
                asked += 1
                seconds = time.monotonic() - told.at
                if found or seconds > self._found_s:
                    break
                time.sleep(ASK_AGAIN_S)
            removed_shown = False
            if found == expected and told.sequence >= job.held:
                old = batch_of(job.seed, told.publisher, told.sequence - job.held, job.blocks)
                removed_shown = bool(_matches(client, old.tokens))
        finally:
            client.close()
        return ProbeResult(
            at=told.at,
            seconds=seconds if found == expected else None,
            asked=asked,
            removed_shown=removed_shown,
            wrong=f"expected {expected}, got: {found}" if found not in ({}, expected) else "",
        )


def _matches(client: Client, tokens: list[int]) -> dict[str, int]:
    body = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": tokens}
    client.send(post_of(b"/query?hits_only=1", msgspec.json.encode(body)))
    answer = client.receive()
    by_instance = instances_of("JSON", answer) if answer != b"{}" else {}
    found = {name: match["longest_matched"] for name, match in by_instance.items()}
    return {name: tokens for name, tokens in found.items() if tokens}


def open_files(pid: int) -> int:
    """Descriptors of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
