"""The comparison of routers, small: simulated engines and routers as processes, some seconds."""

from pathlib import Path

import pytest

from devtools.routers import routers
from lab.benchmarks.gateways.chats import chats_of
from lab.benchmarks.gateways.simulated import Contest

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")


@pytest.mark.parametrize("name", ["round robin", "vllm-router", "SMG", "Reprise"])
def test_router_answers_all_chats(tmp_path: Path, name: str) -> None:
    contest = Contest(tmp_path)
    if name not in contest.names:
        pytest.skip(routers().all_missing or f"{name} is not installed")
    run = contest.run(name, chats_of(1, 4))
    assert run.answered.failed == 0, run.answered.chats
    assert len(run.engine_s) >= len(run.answered.chats) > 0
    assert run.cpu_s > 0
    least = 0.2 if name == "round robin" else 0.4
    assert run.answered.cached > least


def test_gateway_that_is_killed_goes_on_with_its_index(tmp_path: Path) -> None:
    answered = Contest(tmp_path).restarted("Reprise", chats_of(1, 6))
    problems = [one.problem for one in answered.chats if one.problem]
    assert all(one.startswith("broken off") for one in problems), problems
    assert any(one.refused for one in answered.answered)
    after = [one for one in answered.answered if one.refused]
    assert sum(one.cached_tokens for one in after) > 0
