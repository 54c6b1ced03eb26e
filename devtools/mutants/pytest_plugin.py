"""A pytest plugin for mutants: how properties are tried, and which kernel is tested."""

import importlib.util
import os
import sys

import pytest

KERNEL = "streams.kernel._native"


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


def _load_kernel(path: str) -> None:
    """Has the kernel of a file be imported in place of the built one."""
    spec = importlib.util.spec_from_file_location(KERNEL, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[KERNEL] = module
    spec.loader.exec_module(module)


if "REPRISE_KERNEL" in os.environ:
    _load_kernel(os.environ["REPRISE_KERNEL"])
