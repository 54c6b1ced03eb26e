import pytest

from tests.fakes import FakeTable
from tests.unit.query_api.http.routing.conftest import Service


@pytest.fixture
def service(table: FakeTable) -> Service:
    return Service(table)
