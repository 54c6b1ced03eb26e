import pytest

from query_api.http.app import create_app
from tests.fakes import AsgiClient, FakeTable


@pytest.fixture
def table() -> FakeTable:
    """An empty table that is ready."""
    return FakeTable()


@pytest.fixture
def client(table: FakeTable) -> AsgiClient:
    """A client of the whole app over the table."""
    return AsgiClient(create_app(table, table))
