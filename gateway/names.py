"""What engines call what they serve, as they said last. Pure."""

from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

import msgspec

ENGINE_NAMES_MAX: Final = 1024  # of one engine; others are not known by name


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: Any = None


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


_models: Final = msgspec.json.Decoder(_Models)
_model: Final = msgspec.json.Decoder(_Model)


class NamedModel(NamedTuple):
    """What an engine says of a name.

    Attributes:
        lora_name: the adapter's; "" for none.
        tokens_max: of a prompt and its answer; 0 where it is not said.
        document: in the engine's words.
    """

    lora_name: str
    tokens_max: int
    document: Any


class EngineNames:
    """By base URL of the engine. One loop."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, NamedModel]] = {}
        self._refused: dict[str, set[str]] = {}

    def note(self, base_url: str, models: bytes) -> None:
        """What an engine answers to `GET /v1/models`.

        Raises:
            msgspec.MsgspecError: it is nothing like that.
        """
        found = {}
        for document in _models.decode(models).data[:ENGINE_NAMES_MAX]:
            one = _model.decode(document)
            lora_name = one.id if one.parent else ""
            longest = one.max_model_len
            tokens_max = max(longest, 0) if isinstance(longest, int) else 0
            found[one.id] = NamedModel(lora_name, tokens_max, msgspec.Raw(bytes(document)))
        self._said[base_url] = found
        self._refused.get(base_url, set()).difference_update(found)

    def refused(self, base_url: str, name: str) -> None:
        """That an engine has answered 404 to a request for a model of that name."""
        refused = self._refused.setdefault(base_url, set())
        if len(refused) < ENGINE_NAMES_MAX:
            refused.add(name)

    @property
    def has_refused(self) -> bool:
        """Whether any engine has refused a name."""
        return bool(self._refused)

    def lacks(self, base_url: str, name: str) -> bool:
        """Whether an engine has refused that name, and says that it serves others alone."""
        said = self._said.get(base_url, {})
        return bool(said) and name not in said and name in self._refused.get(base_url, ())

    def keep(self, base_urls: Collection[str]) -> None:
        """Forgets all engines but these."""
        self._said = {url: said for url, said in self._said.items() if url in base_urls}
        self._refused = {url: names for url, names in self._refused.items() if url in base_urls}

    def named(self, base_url: str, name: str) -> NamedModel | None:
        """What an engine calls so; None: nothing."""
        return self._said.get(base_url, {}).get(name)

    def tokens_max(self, base_url: str) -> int:
        """Of the longest prompt that an engine takes; 0 where it is not said."""
        said = [one.tokens_max for one in self._said.get(base_url, {}).values()]
        return max(said) if said and all(said) else 0

    def documents(self, base_urls: Iterable[str]) -> dict[str, Any]:
        """What these engines say of each model, by its name; the first one's word counts."""
        found: dict[str, Any] = {}
        for base_url in base_urls:
            for name, one in self._said.get(base_url, {}).items():
                found.setdefault(name, one.document)
        return found
