"""The registered engines, as `tokens` asks them, and the tokenizer of a role that does."""

from collections.abc import Sequence
from typing import Final

from bridge.engine_http.client import KeepAlivePool, post
from doctor.examination import facts_of
from doctor.releases import version_of
from query_api.ports import ServiceView, View
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions
from schemas.identities import DEFAULT_TENANT
from schemas.registration import SGLANG, VLLM
from tokens.interface import Engine, EngineAnswer
from tokens.settings import TokensSettings
from tokens.tokenizer import Tokenizer

LOOK_S: Final = 1.0  # between two looks at who is registered, of thousands each time
CONNECTIONS_MAX: Final = 256  # that stay open from one question to the next
RENDERS_SINCE: Final = (0, 18, 0)  # before it vLLM's /tokenize leaves out default template kwargs


class RegisteredEngines:
    """See `tokens.interface.Engines`."""

    def __init__(self, view: View, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._found: dict[tuple[str, str], list[Engine]] = {}
        self._without: set[tuple[str, str]] = set()
        self._looked_at = -LOOK_S
        self._kept = KeepAlivePool(CONNECTIONS_MAX)

    def of_model(self, model: str, tenant_id: str) -> Sequence[Engine]:
        """See `Engines`. An adapter has the tokens of its model, so its name is looked for, too."""
        self._look()
        return self._found.get((tenant_id or DEFAULT_TENANT, model), ())

    def are_all(self, model: str, tenant_id: str) -> bool:
        """See `Engines`."""
        self._look()
        return (tenant_id or DEFAULT_TENANT, model) not in self._without

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        found: dict[tuple[str, str], dict[str, Engine]] = {}
        asked: set[tuple[str, str, str]] = set()
        known: set[tuple[str, str, str]] = set()
        for one in self._view.services():
            its = one.registration
            url = its.http_url or _address(its.url)
            for name in filter(None, (its.model_name, its.lora_name)):
                instance = its.tenant_id, name, its.instance_id
                if url:
                    engines = found.setdefault((its.tenant_id, name), {})
                    # Incarnations of its ranks only grow.
                    before = engines.get(url, Engine(url, its.kind, renders=False, completes=False))
                    engines[url] = Engine(
                        url,
                        its.kind,
                        before.life + one.state.incarnation,
                        before.renders or _renders(one),
                        before.completes or _completes(one),
                    )
                    asked.add(instance)
                elif its.has_events and not its.is_pool:
                    known.add(instance)
        self._found = {key: list(urls.values()) for key, urls in found.items()}
        self._without = {(tenant_id, name) for tenant_id, name, _ in known - asked}

    async def post(
        self, base_url: str, path: str, body: bytes, *, wait_s: float, bytes_max: int
    ) -> EngineAnswer:
        """See `Engines`."""
        reply = await post(
            base_url, path, body, wait_s=wait_s, bytes_max=bytes_max, kept=self._kept
        )
        return EngineAnswer(reply.status, reply.body)


def _renders(one: ServiceView) -> bool:
    """Whether its `/tokenize` renders chats as its engine does, as it says of itself: SGLang makes
    text of the tokens of a model that reads images, and tokens of that again, with another BOS.
    """
    kind, facts = one.registration.kind, facts_of(one)
    if kind == VLLM:
        version = None if facts is None else version_of(facts.version)
        return version is not None and version >= RENDERS_SINCE
    return kind != SGLANG or (facts is not None and not facts.reads_media)


def _completes(one: ServiceView) -> bool:
    """Whether it computes the texts of completions as they are: an SGLang may have a template for
    them, which its `/tokenize` does not use.
    """
    facts = facts_of(one)
    return one.registration.kind != SGLANG or bool(facts and facts.completes_as_told)


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
