"""What this Reprise writes to its disk, in an archive that later ones are held to reading.

`python -m tests.written NAME` makes `tests/data/written-by-NAME.tar.xz`; `tests/unit/
test_older_formats.py` opens it. It has

    data/              a data directory of `reprise up`, stopped in order
    data.capture       a capture of its log
    expected.msgpack   what the service said of it before it was stopped: `Expected`
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lab.engines.publisher import PublisherOptions
from lmcache_adapter.commands.log import COMMANDS
from logs.embedded import EmbeddedLog
from schemas.command_records import (
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
    encode_command,
)
from schemas.records import Part, encode_record
from tests.building import (
    BLOCK,
    events_record,
    gap_record,
    heartbeat_record,
    memory_record,
    registered_record,
    registration,
    report,
    stored,
)
from tests.deployment import query_for
from tests.load import Engine, Load
from tests.processes import THIS, Service, until

ARCHIVES: Final = Path(__file__).parent / "data"
BATCHES: Final = 120
PORTS: Final = (1101, 1103)
"""Of the engines: a service that opens the archive must find nobody there, as at those that the
system chooses.
"""
COMMAND: Final = "Clear_1"


class Answered(msgspec.Struct):
    """An answer of the past."""

    position: str
    query: dict[str, Any]
    document: Any


class Expected(msgspec.Struct):
    """What the service said.

    Attributes:
        contexts: of `GET /digest`.
        publishers: of `GET /gaps`.
        services: names of what is registered.
        past: answers of past positions.
        audited: answers that were kept.
        decided: decisions that were made.
        under_way: those of them that had not ended.
    """

    contexts: list[dict[str, Any]]
    publishers: list[dict[str, Any]]
    services: list[str]
    past: list[Answered]
    audited: int
    decided: int
    under_way: int


def run(*arguments: str, program: Sequence[str] = THIS) -> str:
    """What a command prints; it has to end with 0."""
    done = subprocess.run(
        [*program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def write_what_is_rare(data: Path) -> None:
    """Records of each kind that engines do not bring about in a moment."""
    one = registration("rare", port=1)
    tokens = list(range(6 * BLOCK))
    events = [
        stored(2, [number], tokens[: number * BLOCK][-BLOCK:], parent=number - 1)
        for number in (2, 3)
    ]
    log = EmbeddedLog(data / "log")
    log.append(
        [
            registered_record(one),
            events_record(0, 0, [stored(0, [1], tokens[:BLOCK])], stream=one.stream),
            events_record(1, 1, [], stream=one.stream, repaired="missed", other_ranks=(3,)),
            *(
                events_record(2, 2, [event], stream=one.stream, part=Part(place, place + 1, 2))
                for place, event in enumerate(events)
            ),
            gap_record(3, 4, stream=one.stream),
            heartbeat_record("bridge-1", 1.0, [report(one)]),
            encode_record(memory_record()),
        ]
    )
    log.close()
    commands = EmbeddedLog(COMMANDS.path_in(data))
    worker = CommandWorker(0)
    command = CommandRecord(
        command_id=COMMAND,
        action=CommandAction.CLEAR,
        instance_id="rare",
        workers=(worker,),
        issued_at=1_790_000_000.0,
    )
    result = ResultRecord(
        command_id=COMMAND, worker_id=0, outcome=CommandOutcome.OK, tokens=7, at=1_790_000_001.0
    )
    commands.append([encode_command(command), encode_command(result)])
    commands.close()


def ask(service: Service, query: dict[str, Any], position: str = "") -> tuple[Any, str]:
    """A document and its position."""
    path = f"/query?as_of={position}" if position else "/query"
    status, document, headers = service.exchange(path, query)
    assert status == 200, document
    return document, headers["reprise-position"]


def decide(service: Service, query: dict[str, Any], *, ends: bool) -> None:
    status, decided = service.post("/route", query)
    assert status == 200, decided
    if ends:
        feedback = {"decision_id": decided["decision_id"], "event": "completed", "ttft_ms": 40.0}
        status, said = service.post("/feedback", feedback)
        assert status == 202, said


def write(directory: Path) -> Expected:
    """Makes all of it in a directory, but the archive and `expected.msgpack`."""
    data = directory / "data"
    data.mkdir()
    write_what_is_rare(data)
    options = [
        PublisherOptions(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}") for port in PORTS
    ]
    load = Load(
        1,
        [
            Engine("a", options=options[0]),
            Engine("b", options=options[1], gpu_blocks=40, cpu_blocks=0),
        ],
    )
    try:
        with Service(data, "--set", "audit.rate=1") as service:
            for engine in load.engines:
                assert service.post("/register", engine.registration())[0] == 200
            load.start()
            until(lambda: load.published() > BATCHES, what="the engines publish")
            load.stop()
            queries = [query_for(prompt) for prompt in load.sample()]

            def is_folded() -> bool:
                held = {
                    one.instance_id: one.cache.longest_held(load.prompt(0)) for one in load.engines
                }
                found = ask(service, query_for(load.prompt(0)))[0].get("default", {})
                sequence = service.metric("reprise_publisher_folded_sequence")
                return sequence >= load.published() - 2 and all(
                    found.get(name, {}).get("longest_matched", 0) == tokens
                    for name, tokens in held.items()
                )

            until(is_folded, what="all is folded")
            last = int(ask(service, queries[0])[1].removeprefix("0:"))
            places = [f"0:{last * part // 4}" for part in (1, 2, 3, 4)]
            past = [
                Answered(place, query, ask(service, query, place)[0])
                for place in places
                for query in queries[::9]
            ]
            for number, query in enumerate(queries[:20]):
                ask(service, query)
                decide(service, query, ends=number % 4 > 0)

            def is_kept() -> bool:
                counts = service.get("/routing")[1]["counts"]
                return not counts["waiting"] and service.metric("reprise_audit_written_total") > 20

            until(is_kept, what="answers and decisions are written")
            _, listed = service.get("/services")
            found = Expected(
                contexts=service.digest()["contexts"],
                publishers=service.get("/gaps")[1]["publishers"],
                services=sorted(one["InstanceID"] for one in listed["services"]),
                past=past,
                audited=0,
                decided=20,
                under_way=service.get("/routing")[1]["under_way"],
            )
            assert service.stop() == 0
    finally:
        load.close()
    found.audited = agreed(run("audit", "verify", "--data", str(data)))
    run("capture", "--data", str(data), "--out", str(directory / "data.capture"))
    return found


def agreed(said: str) -> int:
    """How many answers `reprise audit verify` has proven."""
    (line,) = (line for line in said.splitlines() if "disagreed 0" in line and "answers" in line)
    print(line)
    return int(line.split("agreed ")[1].split(",")[0])


def main(name: str) -> None:
    """See the module."""
    archive = ARCHIVES / f"written-by-{name}.tar.xz"
    if archive.exists():
        raise SystemExit(f"Expected a new name, none is ever replaced: {archive}")
    with tempfile.TemporaryDirectory() as directory:
        expected = msgspec.msgpack.encode(write(Path(directory)))
        with tarfile.open(archive, "w:xz") as made:
            for part in ("data", "data.capture"):
                made.add(Path(directory) / part, part, filter=_nobody)
            entry = tarfile.TarInfo("expected.msgpack")
            entry.size = len(expected)
            made.addfile(entry, io.BytesIO(expected))
    print(f"==> {archive}: {archive.stat().st_size:,} bytes")


def _nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """It says nothing of who made it, nor where: RocksDB writes that down, and needs it no more."""
    if Path(entry.name).name.startswith(("LOG", "LOCK")):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1])
