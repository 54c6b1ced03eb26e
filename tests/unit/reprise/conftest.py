from collections.abc import Callable

import pytest
from click.testing import CliRunner

from reprise.cli.main import main


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command of a role that does not start, in this process, whose own settings stay as
    they are: what it says.
    """
    for role in ("up", "serve", "bridge", "streams"):
        monkeypatch.setattr(f"reprise.cli.{role}.begin_service", lambda _: None)

    def run(*command: str, **environment: str) -> str:
        done = CliRunner().invoke(main, command, env=environment)
        assert done.exit_code in (1, 2), done.output
        return done.output

    return run
