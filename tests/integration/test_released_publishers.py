"""The publishers of released engines, their own code, before `reprise up`.

`make engines` fetches them; what is not there is skipped by its name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from devtools.broker import free_ports
from devtools.publishers.released import ReleasedEngine
from devtools.publishers.releases import RELEASES, Release
from devtools.publishers.sample_events import BLOCK_SIZE, CLEARED, removed, stored
from devtools.publishers.table import in_document, row
from devtools.publishers.trial import try_release
from tests.message_proxy import MessageProxy
from tests.processes import Service, until
from tests.releases import fetched

pytestmark = pytest.mark.timeout(300)

PROMPT = list(range(1000, 1020))
LONG = 9000
LONG_WAIT_S = 60.0


def newest(package: str, *versions: str) -> list[Release]:
    """The package's last release, and those that are named."""
    found = [release for release in RELEASES if release.package == package]
    return [*(release for release in found[:-1] if release.version in versions), found[-1]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("released") / "data") as running:
        yield running


class Followed:
    """One engine's addresses, and a tenant of its own in the service."""

    def __init__(self, service: Service, release: Release, name: str, directory: Path) -> None:
        self.release = release
        self.endpoint = f"ipc://{directory}/live"
        self.replay_endpoint = f"ipc://{directory}/replay"
        self._service = service
        self._name = name

    @contextmanager
    def engine(self) -> Iterator[ReleasedEngine]:
        with ReleasedEngine(self.release, self.endpoint, self.replay_endpoint) as running:
            yield running

    def register(self) -> None:
        self._service.register(
            self.endpoint,
            type=self.release.kind,
            tenant_id=self._name,
            block_size=BLOCK_SIZE,
            replay_endpoint=self.replay_endpoint,
        )

    def longest(self, tokens: Sequence[int]) -> int:
        """How many blocks of these tokens the answer says that the engine holds."""
        longest = self._service.longest(tokens, tenant_id=self._name, block_size=BLOCK_SIZE)
        return longest // BLOCK_SIZE

    def state(self) -> str:
        fields = {
            "model": "m",
            "block_size": BLOCK_SIZE,
            "token_ids": [1],
            "tenant_id": self._name,
        }
        _, _, headers = self._service.exchange("/query", fields)
        return headers["reprise-state"]

    def await_longest(self, tokens: Sequence[int], blocks: int) -> None:
        until(lambda: self.longest(tokens) == blocks, what=f"{blocks} blocks of {self._name}")


@pytest.fixture
def follow(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Followed]:
    def followed(release: Release, purpose: str) -> Followed:
        directory = tmp_path_factory.mktemp("engine")
        return Followed(service, release, f"{release} {purpose}", directory)

    return followed


@pytest.mark.parametrize("release", fetched(*RELEASES))
def test_what_it_sent_before_and_what_it_sends_is_known_and_so_is_its_restart(
    release: Release, follow: Callable[..., Followed]
) -> None:
    one = follow(release, "restarted")
    prompt, other = list(range(1000, 1020)), list(range(5000, 5008))
    with one.engine() as engine:
        engine.publish(stored([1, 2, 3]))
        one.register()
        one.await_longest(prompt, 3)
        engine.publish(stored([4, 5], 3, first_token=1012))
        one.await_longest(prompt, 5)
        engine.publish(removed([2]), stored([-7], first_token=5000))
        one.await_longest(prompt, 1)
        one.await_longest(other, 1)
        until(lambda: one.state() == "exact", what=f"{release} is exact")
    with one.engine() as engine:
        engine.publish(stored([1, 2], first_token=5000), ts=1_800_000_000.5)
        one.await_longest(other, 2)
        one.await_longest(prompt, 0)
        engine.publish(CLEARED)
        one.await_longest(other, 0)
        until(lambda: one.state() == "exact", what=f"{release} is exact again")


@pytest.mark.parametrize("release", fetched(*RELEASES))
def test_the_table_of_the_document_says_what_was_decoded(release: Release) -> None:
    assert row(try_release(release)) in in_document()


@pytest.mark.parametrize(
    "release",
    fetched(*newest("vllm", "0.9.1", "0.25.0", "0.30.0"), *newest("sglang", "0.4.10", "0.5.20")),
)
def test_a_long_past_is_known_whole_or_its_loss_is_told(
    release: Release, follow: Callable[..., Followed]
) -> None:
    """9,000 buffered batches: released ROUTERs drop replies to whoever reads slowly, some without
    an end marker, and some with holes.
    """
    one = follow(release, "long")
    prompts = [[number, number, 1, 1] for number in range(LONG)]
    with one.engine() as engine:
        engine.publish_all(
            [[stored([number + 1], token_ids=tokens)] for number, tokens in enumerate(prompts)],
            ts=1_700_000_000.5,
        )
        one.register()
        until(lambda: one.longest(prompts[-1]) == 1, what="its last batch", timeout_s=LONG_WAIT_S)
        # A replay is believed that has shown a live batch.
        engine.publish(stored([LONG + 1], token_ids=[LONG, LONG, 1, 1]))
        until(
            lambda: one.state() in ("exact", "degraded"),
            what=f"{release} is known",
            timeout_s=LONG_WAIT_S,
        )
        missing = [number for number, tokens in enumerate(prompts) if one.longest(tokens) != 1]
        assert one.state() == ("degraded" if missing else "exact")
        print(f"{release}: {len(missing)} of {LONG} batches are missing")


@pytest.mark.parametrize("release", fetched(*newest("vllm"), *newest("sglang")))
def test_its_ranks_are_found_by_the_offset_of_their_ports(
    release: Release, service: Service
) -> None:
    """The first port is that of rank 0, and rank N adds N."""
    base, replay = free_ports(2)
    engines: list[ReleasedEngine] = []
    try:
        for rank in range(3):
            addresses = f"tcp://[::1]:{base}", f"tcp://[::1]:{replay}"
            engines.append(ReleasedEngine(release, *addresses, dp_rank=rank, topic="kv@all"))
            engines[-1].publish(stored(range(1, rank + 2)))
            service.register(
                f"tcp://[::1]:{base + rank}",
                type=release.kind,
                tenant_id=f"{release} ranks",
                block_size=BLOCK_SIZE,
                dp_rank=rank,
                replay_endpoint=f"tcp://[::1]:{replay + rank}",
            )

        def ranks() -> object:
            fields = {"tenant_id": f"{release} ranks", "block_size": BLOCK_SIZE}
            return service.query(range(1000, 1012), **fields).get("a", {}).get("DP")

        until(
            lambda: ranks() == {"0": BLOCK_SIZE, "1": 2 * BLOCK_SIZE, "2": 3 * BLOCK_SIZE},
            what="what each rank holds",
        )
    finally:
        for engine in engines:
            engine.kill()


@pytest.mark.parametrize("release", fetched(*newest("vllm", "0.9.1"), *newest("sglang", "0.4.10")))
def test_its_ranks_behind_one_address_are_followed_each_by_its_own_numbers(
    release: Release, service: Service
) -> None:
    base, replay = free_ports(2)
    tenant = {"tenant_id": f"{release} behind one address"}
    with ExitStack() as stack:
        engines = [
            stack.enter_context(
                ReleasedEngine(
                    release, f"tcp://[::1]:{base}", f"tcp://[::1]:{replay}", dp_rank=rank
                )
            )
            for rank in range(4)
        ]
        proxy = stack.enter_context(
            closing(MessageProxy(*(f"tcp://[::1]:{base + rank}" for rank in range(4))))
        )
        for rank in range(4):
            service.register(
                proxy.endpoint,
                type=release.kind,
                block_size=BLOCK_SIZE,
                dp_rank=rank,
                replay_endpoint=f"tcp://[::1]:{replay + rank}",
                **tenant,
            )
        for block in range(4):
            for rank in range(block, 4):  # rank n sends n + 1 batches of a block each
                first_token = PROMPT[BLOCK_SIZE * block]
                engines[rank].publish(stored([block + 1], block or None, first_token=first_token))

        def answer() -> tuple[str, object]:
            fields = {"model": "m", "block_size": BLOCK_SIZE, "token_ids": PROMPT, **tenant}
            _, found, headers = service.exchange("/query", fields)
            return headers["reprise-state"], found[tenant["tenant_id"]]["a"]["DP"]

        held = {str(rank): BLOCK_SIZE * (rank + 1) for rank in range(4)}
        until(lambda: answer() == ("exact", held), what=f"what each rank of {release} holds")
        gaps = service.get(f"/gaps?tenant_id={tenant['tenant_id'].replace(' ', '%20')}")[1]
        assert [one["totals"]["lost"] for one in gaps["publishers"]] == [{}] * 4
