"""Released engines' own publishers before both forms of the service.

`tests/integration/test_released_publishers.py` has each release before one of the forms.
"""

from pathlib import Path

import pytest

from devtools.publishers.released import ReleasedEngine
from devtools.publishers.releases import RELEASES, Release
from devtools.publishers.sample_events import BLOCK_SIZE, removed, stored
from tests.contract.deployments import Tenant
from tests.releases import fetched

pytestmark = pytest.mark.timeout(180)

PROMPT = list(range(1000, 1020))
OTHER = list(range(5000, 5008))


def first_and_last(package: str) -> list[object]:
    """The package's oldest release and its newest."""
    of_package = [release for release in RELEASES if release.package == package]
    return fetched(of_package[0], of_package[-1])


@pytest.mark.parametrize("release", [*first_and_last("vllm"), *first_and_last("sglang")])
def test_what_it_sent_before_and_what_it_sends_is_known_and_so_is_its_restart(
    release: Release, tenant: Tenant, tmp_path: Path
) -> None:
    endpoint, replay_endpoint = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"

    def await_blocks(tokens: list[int], blocks: int) -> None:
        tenant.await_longest(tokens, BLOCK_SIZE * blocks, block_size=BLOCK_SIZE)

    with ReleasedEngine(release, endpoint, replay_endpoint) as engine:
        engine.publish(stored([1, 2, 3]))
        tenant.api.register(
            endpoint,
            type=release.kind,
            tenant_id=tenant.tenant_id,
            block_size=BLOCK_SIZE,
            replay_endpoint=replay_endpoint,
        )
        await_blocks(PROMPT, 3)
        engine.publish(stored([4, 5], 3, first_token=1012), removed([2]))
        engine.publish(stored([2], 1, first_token=1004), stored([-7], first_token=5000))
        await_blocks(PROMPT, 5)
        await_blocks(OTHER, 1)
    with ReleasedEngine(release, endpoint, replay_endpoint) as engine:
        engine.publish(stored([1, 2], first_token=5000), ts=1_800_000_000.5)
        await_blocks(OTHER, 2)
        await_blocks(PROMPT, 0)
