import pytest

from tests.fakes import FakeTable
from tests.unit.routing.http.conftest import Service


@pytest.fixture
def service(table: FakeTable) -> Service:
    return Service(table)
