"""What a prompt becomes: token ids, or the name of the reason why there are none."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from schemas.errors import RepriseError
from tokens.prompt import Prompt


class TokenSource(StrEnum):
    """Who made token ids of a prompt."""

    GIVEN = "given"
    """The request has token ids itself."""
    LOCAL = "local"
    """The model's own tokenizer and chat template, in this process."""
    ENGINE = "engine"
    """An engine's `/tokenize`."""


class NoTokens(StrEnum):
    """Why a prompt has no token ids here. The request is routed by load."""

    MEDIA = "media"
    """The prompt has images, audio, video or files, whose tokens only the engine knows."""
    SEVERAL_PROMPTS = "several_prompts"
    """The request has more than one prompt."""
    EMBEDDINGS = "embeddings"
    """The prompt is a vector, no text."""
    NO_TOKENIZER = "no_tokenizer"
    """The settings name no tokenizer for the model, and no engine of the model can be asked."""
    NO_LIBRARY = "no_library"
    """The extra `text` is not installed, and no engine of the model can be asked."""
    TEMPLATE = "template"
    """The model's chat template refuses the messages, fails, or takes too long."""
    UNSUPPORTED = "unsupported"
    """The request asks for something that only the engine can do to a prompt."""
    TOO_LARGE = "too_large"
    """The prompt is larger than a bound of this room."""
    BUSY = "busy"
    """As many prompts are being tokenized as can be at once."""
    ENGINE_SILENT = "engine_silent"
    """The engine that was asked did not answer in time, or not with token ids."""
    ENGINE_REFUSES = "engine_refuses"
    """The engine that was asked refuses the prompt."""


class NoTokensError(RepriseError):
    """A prompt has no token ids here.

    Operator action: see `reason`; `reprise_tokens_failed_total` counts each.
    """

    def __init__(self, reason: NoTokens, text: str) -> None:
        self.reason = reason
        super().__init__(text)


class Tokens(NamedTuple):
    """The token ids that an engine computes for a prompt.

    Attributes:
        content: token ids, (n,) u32 little-endian, as a query of the index has them.
        source: who made them.
        reused: how many of them were kept from earlier prompts.
    """

    content: bytes
    source: TokenSource
    reused: int = 0

    @property
    def count(self) -> int:
        """How many token ids there are."""
        return len(self.content) // 4


class EngineAnswer(NamedTuple):
    """What an engine's HTTP server answered."""

    status: int
    body: bytes


class Engines(Protocol):
    """The engines of models, as this room asks them. The composition hands it in."""

    def of_model(self, model: str, tenant_id: str) -> Sequence[str]:
        """The base URLs of the engines that serve the model, those first that should be asked
        first. Cost O(engines of the model).
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
            prompt: of `tokens.prompt.read_chat` or `read_completion`.
            tenant_id: whose engines may be asked; "" for the default tenant.

        Raises:
            NoTokensError: there are none; the request is routed by load.
        """
        ...

    def counted(self, prompt: Prompt, tokens: Tokens, prompt_tokens: int) -> None:
        """An engine has answered the prompt, and said in `usage` how many tokens it has. A count
        that differs is a difference, as one of `/tokenize`.
        """
        ...
