"""In which form of the service a test runs: the fixture `form`.

A test runs against the embedded form, and one that is marked `both_forms` against the distributed
one, too. Documents, bridges, folds and routers are the same code in both: what is marked shows what
the forms do not share, which is topics, roles, and what passes between them.
"""

from typing import Final

import pytest

FORMS: Final = ("embedded", pytest.param("kafka", marks=pytest.mark.faults))


def pytest_configure(config: pytest.Config) -> None:
    """The marker decides."""
    config.addinivalue_line("markers", "both_forms: in the distributed form, too: tests/forms.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """See the module."""
    if "form" in metafunc.fixturenames:
        is_marked = metafunc.definition.get_closest_marker("both_forms") is not None
        forms = FORMS if is_marked else FORMS[:1]
        metafunc.parametrize("form", forms, indirect=True, scope="session")


@pytest.fixture(scope="session")
def form(request: pytest.FixtureRequest) -> str:
    """`embedded` or `kafka`."""
    name: str = request.param
    return name
