"""What a prompt becomes, and what this room needs of others."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from schemas.media import MediaItem
from tokens.prompt import NoTokens, NoTokensError, Prompt

__all__ = (
    "Engine",
    "EngineAnswer",
    "Engines",
    "NoTokens",
    "NoTokensError",
    "PromptTokenizer",
    "TokenSource",
    "Tokens",
)


class TokenSource(StrEnum):
    """Who made token ids of a prompt."""

    GIVEN = "given"
    """The request has token ids itself."""
    LOCAL = "local"
    """The model's own tokenizer and chat template, in this process."""
    ENGINE = "engine"
    """An engine's `/tokenize`."""


class Tokens(NamedTuple):
    """The token ids that an engine computes for a prompt.

    Attributes:
        content: token ids, (n,) u32 little-endian, as a query of the index has them.
        source: who made them.
        reused: how many of them were kept from earlier prompts.
        media: images and the like among them, where the engine says what it calls them.
        is_proven: whether each engine of the model is known to make the same of such a prompt
            (`tokens.proofs`); an answer is not `exact` by others.
    """

    content: bytes
    source: TokenSource
    reused: int = 0
    media: Sequence[MediaItem] = ()
    is_proven: bool = True

    @property
    def length(self) -> int:
        """How many token ids there are."""
        return len(self.content) // 4


class Engine(NamedTuple):
    """An engine that may be asked.

    Attributes:
        url: the base URL of its HTTP server.
        kind: as registrations name it: `vLLM`, `SGLang`.
        life: another number once its process is seen to be another, which may have other flags.
        renders: whether its `/tokenize` is known to render chats as it renders those that it
            answers.
        completes: whether that is known to compute the texts of completions as they are.
    """

    url: str
    kind: str
    life: int = 0
    renders: bool = True
    completes: bool = True


class EngineAnswer(NamedTuple):
    """What an engine's HTTP server answered."""

    status: int
    body: bytes


class Engines(Protocol):
    """The engines of models, as this room asks them. The composition hands it in."""

    def of_model(self, model: str, tenant_id: str) -> Sequence[Engine]:
        """The engines that serve the model and have an HTTP server. Cost O(engines)."""
        ...

    def are_all(self, model: str, tenant_id: str) -> bool:
        """Whether `of_model` has every engine whose events are followed: others can prove nothing
        of tokens.
        """
        ...

    async def post(
        self, base_url: str, path: str, body: bytes, *, wait_s: float, bytes_max: int
    ) -> EngineAnswer:
        """What the engine answers to a JSON body.

        Raises:
            RepriseError: no answer came in time, or a larger one.
        """
        ...


class PromptTokenizer(Protocol):
    """Makes token ids of prompts. One event loop; `tokens.tokenizer.Tokenizer` is one."""

    async def tokens(self, prompt: Prompt, tenant_id: str = "") -> Tokens:
        """The token ids that an engine computes for the prompt.

        Args:
            prompt: of `tokens.prompt`, or of `tokens.responses`.
            tenant_id: whose engines may be asked; "" for the default tenant.

        Raises:
            NoTokensError: there are none; the request is routed by load.
        """
        ...

    def counted(self, prompt: Prompt, tokens: Tokens, prompt_tokens: int) -> None:
        """An engine has answered the prompt, and said in `usage` how many tokens it has. A count
        that differs is a difference, as one of `/tokenize`, and ends what that has proven.
        """
        ...
