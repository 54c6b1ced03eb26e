"""Whether engines say in `usage` what they found in their caches: vLLM and SGLang each have a flag.

Where something was promised, an answer should say what was found. Older releases of vLLM leave a
zero out, so an answer to a prompt without a promise proves nothing.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from gateway.fleet import EngineTarget
from schemas.registration import SGLANG, VLLM

CACHE_UNSAID_MIN: Final = 5  # answers in a row, until it is said that an engine lacks its flag
CACHE_REPORTS_MAX: Final = 4096  # engines that are remembered; the oldest goes

_FLAGS: Final[Mapping[str, str]] = {
    VLLM: "--enable-prompt-tokens-details",
    SGLANG: "--enable-cache-report",
}
_EITHER: Final = " (vLLM) or ".join(_FLAGS.values()) + " (SGLang)"

logger = logging.getLogger(__name__)


class CacheReports:
    """See the module. One loop."""

    def __init__(self) -> None:
        self._unsaid: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def note(self, target: EngineTarget, promised: int, cached: int | None) -> None:
        """An engine has answered with its count of tokens.

        Args:
            promised: tokens that it was said to hold.
            cached: those that it says it found; None: it does not say it.
        """
        count, _ = self._unsaid.pop(target.base_url, (0, ""))
        if cached is not None:
            return
        count += promised > 0
        lacks = _lacks(target.kind)
        self._unsaid[target.base_url] = count, lacks
        if len(self._unsaid) > CACHE_REPORTS_MAX:
            self._unsaid.popitem(last=False)
        if count == CACHE_UNSAID_MIN and promised > 0:
            logger.warning("%s serves, but %s", target.base_url, lacks)

    def unsaid(self) -> Mapping[str, int]:
        """Answers in a row that did not say it, by base URL, of engines that lack the flag."""
        return {url: n for url, (n, _) in self._unsaid.items() if n >= CACHE_UNSAID_MIN}

    def lacks(self, base_url: str) -> str:
        """What an engine lacks, with its flag that helps; "" for nothing."""
        count, lacks = self._unsaid.get(base_url, (0, ""))
        return lacks if count >= CACHE_UNSAID_MIN else ""


def _lacks(kind: str) -> str:
    flag = _FLAGS.get(kind, _EITHER)
    return f"its usage does not say how many tokens it found in its cache: start it with {flag}"
