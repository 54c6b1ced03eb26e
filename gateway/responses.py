"""Which engine keeps which response: `previous_response_id` is worth nothing to another one. Pure.

An engine keeps conversations of `POST /v1/responses` in its own memory, where it does at all (vLLM
with VLLM_ENABLE_RESPONSES_API_STORE).
"""

from collections import OrderedDict
from typing import Final

from gateway.fleet import EngineKey

RESPONSES_KEPT_MAX: Final = 32_768  # whose engine is remembered; the oldest goes, and is by load


class KeptResponses:
    """See the module. One loop."""

    def __init__(self) -> None:
        self._engines: OrderedDict[tuple[str, str], EngineKey] = OrderedDict()

    def note(self, tenant_id: str, response: str, engine: EngineKey) -> None:
        """That engine has answered with a response of that id."""
        self._engines[tenant_id, response] = engine
        self._engines.move_to_end((tenant_id, response))
        if len(self._engines) > RESPONSES_KEPT_MAX:
            self._engines.popitem(last=False)

    def engine_of(self, tenant_id: str, response: str) -> EngineKey | None:
        """None where nobody knows."""
        return self._engines.get((tenant_id, response))
