"""Released engines' own publishers before both forms of the service.

`tests/integration/test_released_publishers.py` has each release before one of the forms.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.publishers.released import ReleasedEngine
from devtools.publishers.releases import RELEASES, Release
from devtools.publishers.story import BLOCK_SIZE, removed, stored
from tests.contract.deployments import Deployment, Distributed, Embedded, Tenant, tenant_of
from tests.kafka_fixtures import own_topics, settings_for

pytestmark = pytest.mark.timeout(180)

PROMPT = list(range(1000, 1020))
OTHER = list(range(5000, 5008))


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.slow)])
def deployment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        embedded = Embedded(directory)
        yield embedded
        embedded.close()
        return
    kafka = request.getfixturevalue("kafka")
    with own_topics(kafka) as prefix:
        distributed = Distributed.round(settings_for(kafka, prefix), directory)
        yield distributed
        distributed.close()


@pytest.fixture
def tenant(deployment: Deployment) -> Iterator[Tenant]:
    with tenant_of(deployment, f"t-{uuid.uuid4().hex[:8]}") as tenant:
        yield tenant


def first_and_last(package: str) -> list[object]:
    """The package's oldest release and its newest, skipped where they have not been fetched."""
    of_package = [release for release in RELEASES if release.package == package]
    return [
        pytest.param(
            release,
            id=str(release),
            marks=pytest.mark.skipif(
                not release.is_fetched, reason=f"no {release}: `make engines` fetches it"
            ),
        )
        for release in (of_package[0], of_package[-1])
    ]


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
