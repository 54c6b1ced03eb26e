"""What is the same of both forms of the service, each started once for all tests of a worker."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from tests.contract.deployments import Deployment, Distributed, Embedded, Tenant, tenant_of
from tests.kafka_fixtures import own_topics, settings_for


@pytest.fixture(scope="session")
def deployment(
    form: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp(form)
    if form == "embedded":
        with closing(Embedded(directory)) as embedded:
            yield embedded
        return
    kafka = request.getfixturevalue("kafka")
    with (
        own_topics(kafka) as prefix,
        closing(Distributed.round(settings_for(kafka, prefix), directory)) as distributed,
    ):
        yield distributed


@pytest.fixture
def tenant(deployment: Deployment) -> Iterator[Tenant]:
    with tenant_of(deployment, f"t-{uuid.uuid4().hex[:8]}") as tenant:
        yield tenant


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with closing(Publisher(PublisherOptions())) as opened:
        yield opened
