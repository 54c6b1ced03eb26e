"""How often engines are asked for their load, by what that costs. Pure."""

from typing import Final

from bridge.bounds import CHECK_DOUBLINGS_MAX
from bridge.engine_http.bounds import LOAD_CPU_SHARE, LOAD_PERIOD_MAX_S

LOAD_SERVER_CPU_SHARE: Final = 0.003  # of a core, that the answers of one server may take
LOAD_QUESTION_S: Final = 0.0004  # of CPU, what a question is taken to cost until it is measured
LOAD_COST_S: Final = 5.0  # over which it is measured
LOAD_BACKOFF_MAX_S: Final = 30.0  # a period is doubled with each failure in a row, up to this


def pause_s(period_s: float, failures: int, read_s: float = 0.0) -> float:
    """From a question to the next one, seconds.

    Args:
        period_s: that all have.
        failures: in a row.
        read_s: CPU seconds that reading its last answer took: who answers with much pays for it
            alone, and delays nobody else.
    """
    doubled = period_s * 2.0 ** min(failures, CHECK_DOUBLINGS_MAX)
    return max(min(doubled, LOAD_BACKOFF_MAX_S), period_s, read_s / LOAD_SERVER_CPU_SHARE)


class LoadPace:
    """How often so many can be asked for no more than a share of a core.

    Args:
        share: of a core.
    """

    def __init__(self, period_s: float, share: float = LOAD_CPU_SHARE) -> None:
        self._wanted_s = period_s
        self._share = share
        self._question_s = LOAD_QUESTION_S
        self._since: tuple[float, float, int] | None = None

    def note(self, now: float, cpu_s: float, questions: int) -> None:
        """Takes what was used so far.

        Args:
            now: monotonic seconds.
            cpu_s: CPU seconds, in all.
        """
        if self._since is None:
            self._since = now, cpu_s, questions
        since, cpu_before, before = self._since
        if now - since >= LOAD_COST_S and questions > before:
            self._question_s += ((cpu_s - cpu_before) / (questions - before) - self._question_s) / 2
            self._since = now, cpu_s, questions

    def period_s(self, servers: int) -> float:
        """What is wanted, or longer; at most LOAD_PERIOD_MAX_S."""
        return min(max(self._wanted_s, servers * self._question_s / self._share), LOAD_PERIOD_MAX_S)
