"""The registered engines, as `tokens` asks them, and the tokenizer of a role that does."""

from collections.abc import Sequence
from typing import Final

from bridge.engine_http.client import KeepAlivePool, post
from query_api.ports import View
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions
from schemas.identities import DEFAULT_TENANT
from tokens.interface import Engine, EngineAnswer
from tokens.settings import TokensSettings
from tokens.tokenizer import Tokenizer

LOOK_S: Final = 1.0  # between two looks at who is registered, of thousands each time
CONNECTIONS_MAX: Final = 256  # that stay open from one question to the next


class RegisteredEngines:
    """See `tokens.interface.Engines`."""

    def __init__(self, view: View, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._found: dict[tuple[str, str], list[Engine]] = {}
        self._looked_at = -LOOK_S
        self._kept = KeepAlivePool(CONNECTIONS_MAX)

    def of_model(self, model: str, tenant_id: str) -> Sequence[Engine]:
        """See `Engines`. An adapter has the tokens of its model, so its name is looked for, too."""
        now = self._clock.monotonic()
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._look()
        return self._found.get((tenant_id or DEFAULT_TENANT, model), ())

    def _look(self) -> None:
        found: dict[tuple[str, str], dict[str, Engine]] = {}
        for one in self._view.services():
            its = one.registration
            if url := its.http_url or _address(its.url):
                engine = Engine(url, its.kind)
                for name in filter(None, (its.model_name, its.lora_name)):
                    found.setdefault((its.tenant_id, name), {})[url] = engine
        self._found = {key: list(engines.values()) for key, engines in found.items()}

    async def post(
        self, base_url: str, path: str, body: bytes, *, wait_s: float, bytes_max: int
    ) -> EngineAnswer:
        """See `Engines`."""
        status, answer, _ = await post(
            base_url, path, body, wait_s=wait_s, bytes_max=bytes_max, kept=self._kept
        )
        return EngineAnswer(status, answer)


def _address(url: str) -> str:
    """Of a registration without an `http_endpoint`: its `url`, where requests go; "" of any text
    that is no address of HTTP.
    """
    return url.rstrip("/") if url.startswith(("http://", "https://")) else ""


def open_tokenizer(settings: TokensSettings, view: View, conditions: Conditions) -> Tokenizer:
    """The tokenizer of a role, with the files of its models read: a second each."""
    engines = RegisteredEngines(view, REAL_CLOCK)
    tokenizer = Tokenizer(settings.files, engines, REAL_CLOCK, conditions)
    tokenizer.read()
    return tokenizer
