"""Which engines there are for a model, and what this gateway has under way at each."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from bridge.engine_http.address import read_base_url
from bridge.sockets.allowed_engines import ALLOWED
from gateway.bounds import GATEWAY_START_LOOK_S, GATEWAY_START_S
from gateway.names import EngineNames
from query_api.ports import View
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import AddressRefusedError, EndpointError
from schemas.registration import SGLANG, Registration

FLEET_KEPT_S: Final = 1.0  # how old what is known of registrations may be
FLEET_LOOKED_S: Final = 0.1  # the same, where a model is asked for that nobody is known to serve

EngineKey = tuple[str, int]
"""Instance and data-parallel rank."""


_NO_LABELS: Final[Mapping[str, str]] = {}


class EngineTarget(NamedTuple):
    """A rank of an engine, as requests are sent to it.

    Attributes:
        base_url: of its HTTP server, without a slash at its end.
        role: which phases it takes.
        has_ranks: whether it is one of several behind that address.
    """

    key: EngineKey
    base_url: str
    role: str
    has_ranks: bool
    kind: str = ""
    labels: Mapping[str, str] = _NO_LABELS

    @property
    def place(self) -> tuple[str, int]:
        """Its address and rank, whatever it is registered as."""
        return self.base_url, self.key[1]


class ServedModel(NamedTuple):
    """A model, or an adapter of one, as engines serve it.

    Attributes:
        name: by which the engines are registered.
        lora_name: of the adapter; "" for the model itself.
        block_size: that most of its engines have.
        salt: that they are registered with, most of them.
        targets: that can be sent requests.
        has_all: whether these are all that are registered.
        has_pairs: whether some compute prompts for others.
        tokens_max: of the longest prompt that one of them takes; 0 where it is not known.
    """

    tenant_id: str
    name: str
    lora_name: str
    block_size: int
    salt: str
    targets: Mapping[EngineKey, EngineTarget]
    has_all: bool = True
    has_pairs: bool = False
    tokens_max: int = 0


class Fleet:
    """See the module. One loop.

    Args:
        view: of the table, which has the registrations.
        names: what engines call what they serve: the registered model and the adapter.
        clock: of how old what is known is.

    Attributes:
        given_up: requests for which another engine was tried since theirs was silent.
        under_way: requests of this gateway, by base URL and rank.
        silent: base URLs of engines that are silent; see `gateway.catalog`.
        unusable: registrations without an address that a request can be sent to, as of late.
        doubted: base URLs of engines that may serve other models than they said.
        is_doubted: whether there are any.
    """

    def __init__(
        self,
        view: View,
        names: EngineNames,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.given_up = 0
        self.under_way: Counter[tuple[str, int]] = Counter()
        self.silent: frozenset[str] = frozenset()
        self.unusable = 0
        self.doubted: dict[str, None] = {}
        self.is_doubted = asyncio.Event()
        self._waiting: dict[str, set[asyncio.Timeout]] = {}
        self._view = view
        self._names = names
        self._clock = clock
        self._looked_at = float("-inf")
        self._was_ready = False
        self._models: dict[tuple[str, str], ServedModel] = {}
        self._found: dict[tuple[str, str], ServedModel | None] = {}

    def model(self, tenant_id: str, name: str, lora_path: str = "") -> ServedModel | None:
        """What serves a model of that name; "" is the only one there is. None: nobody does.

        Args:
            name: also `MODEL:ADAPTER`, as SGLang's requests name an adapter.
            lora_path: the adapter that they name beside it; other engines pass that over.
        """
        found = self._model(tenant_id, name)
        if found is None:
            # The names of models may have colons, too.
            places = (at for at in range(len(name) - 1, 0, -1) if name[at] == ":")
            split = ((self._model(tenant_id, name[:at]), name[at + 1 :]) for at in places)
            found, adapter = next((one for one in split if one[0] is not None), (None, ""))
            lora_path = adapter.strip()
            if found is None or not _sglangs(found):
                return None
        if lora_path and (targets := _sglangs(found)):
            found = found._replace(lora_name=lora_path, targets=targets, has_all=False)
        return self._without_refusing(found, name)

    def _model(self, tenant_id: str, name: str) -> ServedModel | None:
        models = self._current(FLEET_KEPT_S)
        key = (tenant_id, name)
        if key in models:
            return models[key]
        if self._found.get(key) is None:  # it may have been registered since
            self._current(FLEET_LOOKED_S)
            self._found[key] = self._models.get(key) or self._named(tenant_id, name)
        return self._found[key]

    def refused(self, target: EngineTarget, name: str) -> None:
        """An engine has answered 404 to a request for that model; `doubted` is to be asked which
        it serves, and where it says that it does not serve this one, others alone are asked.
        """
        if name:
            self._names.refused(target.base_url, name)
        self.doubted[target.base_url] = None
        self.is_doubted.set()

    def _without_refusing(self, model: ServedModel, name: str) -> ServedModel:
        """Where others are left: else the engine's own words are the client's answer."""
        if not self._names.has_refused:
            return model
        lacks = self._names.lacks
        targets = {key: one for key, one in model.targets.items() if not lacks(one.base_url, name)}
        if not targets or len(targets) == len(model.targets):
            return model
        return model._replace(targets=targets, has_all=False)

    async def wait_started(self) -> None:
        """Returns once it is known who is registered: not at once while a service that was started
        reads its log, and never later than the bound.
        """
        end = self._clock.monotonic() + GATEWAY_START_S
        while not (self._view.ready or self._models) and self._clock.monotonic() < end:
            await asyncio.sleep(GATEWAY_START_LOOK_S)
            self._current(0.0)

    def models(self, tenants: frozenset[str] | None = None) -> list[ServedModel]:
        """All models, sorted; those of these tenants."""
        models = self._current(FLEET_KEPT_S)
        return [one for key, one in sorted(models.items()) if tenants is None or key[0] in tenants]

    def base_urls(self) -> dict[str, None]:
        """Of all engines, each once."""
        return {
            target.base_url: None for model in self.models() for target in model.targets.values()
        }

    @property
    def has_answering(self) -> bool:
        """Whether there is an engine that is not known to be silent."""
        return bool(self.base_urls().keys() - self.silent)

    def begin(self, target: EngineTarget) -> None:
        """It has one request more of this gateway; `end` follows."""
        self.under_way[target.place] += 1

    def end(self, target: EngineTarget) -> None:
        """It has one less."""
        self.under_way[target.place] -= 1
        if not self.under_way[target.place]:
            del self.under_way[target.place]

    def wait_for(self, base_url: str, patience: asyncio.Timeout) -> None:
        """A request waits for the first of an answer there; `stop_waiting` follows."""
        self._waiting.setdefault(base_url, set()).add(patience)

    def stop_waiting(self, base_url: str, patience: asyncio.Timeout) -> None:
        """The first has come, or nothing will."""
        waiting = self._waiting.get(base_url)
        if waiting is not None:
            waiting.discard(patience)
            if not waiting:
                del self._waiting[base_url]

    def give_up(self, base_url: str) -> None:
        """That engine is silent: what waits for it is to be tried elsewhere."""
        now = asyncio.get_running_loop().time()
        for patience in self._waiting.pop(base_url, ()):
            self.given_up += 1
            patience.reschedule(now)

    def forget(self) -> None:
        """What is known of registrations is out of date."""
        self._looked_at = float("-inf")

    def _named(self, tenant_id: str, name: str) -> ServedModel | None:
        """By a name that no registration has: an adapter's, or another one of the model's."""
        own = [one for key, one in self._models.items() if key[0] == tenant_id]
        if not name:
            return own[0] if len(own) == 1 else None
        for one in own:
            targets, lora_name = {}, ""
            for key, target in one.targets.items():
                known = self._names.named(target.base_url, name)
                if known is not None:
                    targets[key] = target
                    # SGLang lists its adapters, and computes such a request with the model itself.
                    lora_name = "" if target.kind == SGLANG else known.lora_name
            if targets:
                return one._replace(lora_name=lora_name, targets=targets, has_all=False)
        return None

    def _current(self, kept_s: float) -> Mapping[tuple[str, str], ServedModel]:
        now, is_ready = self._clock.monotonic(), self._view.ready
        if now >= self._looked_at + kept_s or is_ready != self._was_ready:
            self._looked_at, self._was_ready = now, is_ready
            self._found.clear()
            self._models = self._read(self._view.registered())
        return self._models

    def _read(self, registered: Iterable[Registration]) -> dict[tuple[str, str], ServedModel]:
        by_model: dict[tuple[str, str], list[tuple[Registration, str]]] = {}
        self.unusable = 0
        for one in registered:
            if one.is_pool or one.peer_url or one.registered_at:
                continue  # no engine
            base_url = _base_url_of(one)
            if base_url is None:
                self.unusable += 1
                continue
            by_model.setdefault((one.tenant_id, one.model_name), []).append((one, base_url))
            if one.lora_name:
                by_model.setdefault((one.tenant_id, one.lora_name), []).append((one, base_url))
        has_all = not self.unusable
        return {
            key: _served(key, ranks, has_all)._replace(tokens_max=self._tokens_max(ranks))
            for key, ranks in by_model.items()
        }

    def _tokens_max(self, ranks: list[tuple[Registration, str]]) -> int:
        """What the KV cache has room for, or the model takes; of the engine that takes most."""
        found = []
        for one, url in ranks:
            bounds = (one.kv_capacity_tokens, self._names.tokens_max(url))
            found.append(min((bound for bound in bounds if bound), default=0))
        return max(found) if all(found) else 0


def _served(
    key: tuple[str, str], ranks: list[tuple[Registration, str]], has_all: bool
) -> ServedModel:
    several = Counter(base_url for base_url, _ in {(url, one.dp_rank) for one, url in ranks})
    (block_size, salt), _ = Counter(
        (one.block_size, one.additional_salt) for one, _ in sorted(ranks, key=_order)
    ).most_common(1)[0]
    first, _ = ranks[0]
    targets = {
        (one.instance_id, one.dp_rank): EngineTarget(
            (one.instance_id, one.dp_rank),
            url,
            one.role,
            several[url] > 1,
            one.kind,
            {label.name: label.value for label in one.labels},
        )
        for one, url in sorted(ranks, key=_order)
    }
    lora_name = key[1] if key[1] != first.model_name else ""
    roles = {one.role for one in targets.values()}
    return ServedModel(
        key[0],
        first.model_name,
        lora_name,
        block_size,
        salt,
        targets,
        has_all=has_all and not lora_name,
        has_pairs="prefill" in roles,
    )


def _sglangs(model: ServedModel) -> dict[EngineKey, EngineTarget]:
    return {key: one for key, one in model.targets.items() if one.kind == SGLANG}


def _order(rank: tuple[Registration, str]) -> tuple[str, int, int]:
    return (rank[0].instance_id, rank[0].dp_rank, rank[0].block_size)


def _base_url_of(one: Registration) -> str | None:
    """Where its requests go; None where that is no address of HTTP, or may not be asked."""
    text = one.http_url or one.url
    try:
        ALLOWED.check(read_base_url(text).host)
    except (EndpointError, AddressRefusedError):
        return None
    return text.rstrip("/")
