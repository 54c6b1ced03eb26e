"""A prompt's tokens, from an engine that would compute it: only engines know their chat template.

reprise-litellm and reprise-ray have this file in common, as `client.py`.
"""

import hashlib
import itertools
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from .client import Http, Pause, Unanswered

TOKENIZE_TIMEOUT_S: Final = 0.25
"""Of one question to an engine."""

TOKENIZE_BYTES_MAX: Final = 16 << 20
"""Of an engine's answer: about two million tokens; a longer one is `garbage`."""

CACHED_PROMPTS_MAX: Final = 1024
"""Prompts whose tokens are kept; the one longest unused goes."""

CACHED_TOKENS_MAX: Final = 4 << 20
"""Tokens of all of them, 4 bytes each."""

ENGINES_MAX: Final = 1024
"""Engines whose failures are remembered."""

TEMPLATE_FIELDS: Final = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
)
"""Fields of a chat request that change its tokens, with the same name in `/tokenize`."""

Tokens: TypeAlias = "array[int]"


def question(model: str, request: Mapping[str, Any]) -> "dict[str, Any] | Tokens | None":
    """What `/tokenize` is asked of this request, its tokens if it has them itself, or None where
    tokens do not say what the engine will compute: images, several prompts, other calls.

    `request` has the fields of OpenAI's chat completion or completion.
    """
    if "prompt" in request:
        return _completion(model, request["prompt"])
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(one, Mapping) and _is_text(one.get("content")) for one in messages):
        return None
    asked: dict[str, Any] = {"model": model, "messages": messages}
    extra = request.get("extra_body")
    for source in (extra if isinstance(extra, Mapping) else {}, request):
        for name in TEMPLATE_FIELDS:
            if source.get(name) is not None:
                asked[name] = source[name]
    return asked


def _completion(model: str, prompt: object) -> "dict[str, Any] | Tokens | None":
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return {"model": model, "prompt": prompt}
    if isinstance(prompt, list):
        return as_tokens(prompt)
    return None


def _is_text(content: object) -> bool:
    """Of a message; None is that of one that only calls tools."""
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    )


def as_tokens(tokens: object) -> "Tokens | None":
    """None unless they are token ids."""
    if not isinstance(tokens, list) or any(type(one) is not int for one in tokens):
        return None
    try:
        return array("I", tokens)
    except OverflowError:
        return None


class Tokenizer:
    """`/tokenize` of vLLM and SGLang, behind a cache."""

    def __init__(self, http: Http, timeout_s: float = TOKENIZE_TIMEOUT_S) -> None:
        """`timeout_s` of each question."""
        self._http = http
        self._timeout_s = timeout_s
        self._cache: OrderedDict[bytes, Tokens] = OrderedDict()
        self._cached_tokens = 0
        self._pauses: OrderedDict[str, Pause] = OrderedDict()
        self._turn = itertools.count()

    async def tokens(
        self, engines: Sequence[tuple[str, str]], asked: Mapping[str, Any]
    ) -> tuple[Tokens, bool]:
        """The tokens of what `question` returned, and whether they were in the cache.

        Of the engines (base URL, API key) that do not fail, one is asked, in turn.

        Raises:
            Unanswered: why there are none.
        """
        try:
            text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise Unanswered("garbage") from None
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found, True
        asking = [one for one in engines if not self._pause(one[0]).active]
        if not asking:
            raise Unanswered("paused")
        url, api_key = asking[next(self._turn) % len(asking)]
        pause = self._pause(url)
        try:
            tokens = await self._ask(url, api_key, asked)
        except Unanswered:
            pause.failed()
            raise
        pause.worked()
        self._keep(key, tokens)
        return tokens, False

    async def _ask(self, url: str, api_key: str, asked: Mapping[str, Any]) -> Tokens:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        response, body = await self._http.post(
            f"{url}/tokenize", asked, headers, self._timeout_s, TOKENIZE_BYTES_MAX
        )
        if response.status_code != 200:
            raise Unanswered("status")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise Unanswered("garbage") from None
        tokens = as_tokens(document.get("tokens")) if isinstance(document, dict) else None
        if not tokens:
            raise Unanswered("garbage")
        return tokens

    def _pause(self, url: str) -> Pause:
        pause = self._pauses.get(url)
        if pause is None:
            if len(self._pauses) >= ENGINES_MAX:
                self._pauses.popitem(last=False)
            pause = self._pauses[url] = Pause()
        return pause

    def _keep(self, key: bytes, tokens: Tokens) -> None:
        before = self._cache.pop(key, None)  # asked twice at the same time
        if before is not None:
            self._cached_tokens -= len(before)
        if len(tokens) > CACHED_TOKENS_MAX:
            return
        self._cache[key] = tokens
        self._cached_tokens += len(tokens)
        while len(self._cache) > CACHED_PROMPTS_MAX or self._cached_tokens > CACHED_TOKENS_MAX:
            _, gone = self._cache.popitem(last=False)
            self._cached_tokens -= len(gone)
