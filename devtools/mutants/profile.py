"""A pytest plugin: how properties are tried against mutants."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """After the suite's own profile: the first counterexample is enough, and is always the same."""
    from hypothesis import Phase, settings  # only now: pytest wants to import it itself

    settings.register_profile(
        "mutants",
        parent=settings.default,
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    settings.load_profile("mutants")
