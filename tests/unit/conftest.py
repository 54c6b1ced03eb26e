import pytest

from reprise.application import create_app
from streams.kernel import open_kernel
from tests.fakes import SEED, AsgiClient, FakeTable


@pytest.fixture
def table() -> FakeTable:
    """An empty table that is ready, over the kernel that services have."""
    return FakeTable(open_kernel(SEED))


@pytest.fixture
def client(table: FakeTable) -> AsgiClient:
    """A client of the whole app over the table."""
    return AsgiClient(create_app(table, table))
