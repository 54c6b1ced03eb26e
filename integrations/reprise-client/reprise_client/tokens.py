"""A prompt's tokens: made here by the model's own tokenizer, or asked of an engine that has it.

An engine that is busy answers late, when tokens help nobody any more, so a tokenizer of one's own
is the better source: `local_tokens.py`. reprise-litellm and reprise-ray have this file in common,
as `client.py`.
"""

import asyncio
import hashlib
import itertools
import json
import logging
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from reprise_client.client import Http, Pause, Report, Unanswered
from reprise_client.local_tokens import LocalTokenizer

logger = logging.getLogger(__package__)

TOKENIZE_TIMEOUT_S: Final = 0.1
"""Of one question to an engine: what the tokens are for, saves no more on a busy one."""

TOKENIZE_BYTES_MAX: Final = 16 << 20
"""Of an engine's answer: about two million tokens; a longer one is `garbage`."""

CACHED_PROMPTS_MAX: Final = 1024
"""Prompts whose tokens are kept; the one longest unused goes."""

CACHED_TOKENS_MAX: Final = 4 << 20
"""Tokens of all of them, 4 bytes each."""

INLINE_CHARACTERS_MAX: Final = 32_768
"""Of a prompt whose tokens are made on the event loop: a few milliseconds at most. The way to a
thread and back is two rounds of the loop, which last longer where the loop is busy.
"""

ENGINES_MAX: Final = 1024
"""Engines whose failures are remembered."""

COMPARED_TIMEOUT_S: Final = 5.0
COMPARED_FIRST: Final = 5
COMPARED_EVERY: Final = 500
"""Prompts whose tokens were made here are asked of an engine, too, once nobody waits for them: the
first ones, and then now and then.
"""

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


def _characters(asked: Mapping[str, Any]) -> int:
    """About how long the text is of which tokens are to be made."""
    if "prompt" in asked:
        return len(asked["prompt"])
    return sum(len(str(one.get("content"))) for one in asked["messages"])


class _Local:
    """A tokenizer, once it was read from a directory, if it could be; and how often it was used."""

    def __init__(self) -> None:
        self.tokenizer: LocalTokenizer | None = None
        self.made = 0


class Tokenizer:
    """The model's own tokenizer, or `/tokenize` of vLLM and SGLang; behind a cache."""

    def __init__(
        self, http: Http, timeout_s: float = TOKENIZE_TIMEOUT_S, report: Report | None = None
    ) -> None:
        """`timeout_s` of each question; `report` is told of tokenizers that are of no use."""
        self._http = http
        self._timeout_s = timeout_s
        self._report = report
        self._local: dict[str, _Local] = {}
        self._comparing: set[asyncio.Task[None]] = set()
        self._cache: OrderedDict[bytes, Tokens] = OrderedDict()
        self._cached_tokens = 0
        self._pause_of_all = Pause()
        self._pauses: OrderedDict[str, Pause] = OrderedDict()
        self._turn = itertools.count()

    async def tokens(
        self, engines: Sequence[tuple[str, str]], asked: Mapping[str, Any], directory: str = ""
    ) -> tuple[Tokens, str]:
        """The tokens of what `question` returned, and where they are from: `cached`, `local` or
        `asked`.

        They are made by the tokenizer in `directory`, if that is one. Else, of the engines (base
        URL, API key) that fail least, one is asked, in turn.

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
            return found, "cached"
        made = await self._made(engines, asked, directory)
        if made is not None:
            self._keep(key, made)
            return made, "local"
        tokens = await self._asked(engines, asked)
        self._keep(key, tokens)
        return tokens, "asked"

    async def _made(
        self, engines: Sequence[tuple[str, str]], asked: Mapping[str, Any], directory: str
    ) -> "Tokens | None":
        """By the tokenizer in that directory; None where it is of no use for this prompt."""
        if not directory:
            return None
        local = self._local.get(directory)
        if local is None:
            local = self._local[directory] = _Local()
            try:
                local.tokenizer = await asyncio.to_thread(LocalTokenizer, directory)
            except Exception:  # of libraries, and of files that may have anything
                logger.warning("No tokenizer can be read from %s", directory, exc_info=True)
                self._fail("tokenizer_unreadable")
        if local.tokenizer is None:  # or it is being read, for somebody else
            return None
        try:
            if _characters(asked) <= INLINE_CHARACTERS_MAX:
                made = local.tokenizer.tokens(asked)
            else:
                made = await asyncio.to_thread(local.tokenizer.tokens, asked)
        except Exception:  # a template may refuse a prompt
            logger.debug("The tokenizer in %s refuses a prompt", directory, exc_info=True)
            self._fail("tokenizer_refused")
            return None
        local.made += 1
        if engines and (local.made <= COMPARED_FIRST or not local.made % COMPARED_EVERY):
            task = asyncio.create_task(self._compare(engines, asked, directory, local, made))
            self._comparing.add(task)
            task.add_done_callback(self._comparing.discard)
        return made

    async def _compare(
        self,
        engines: Sequence[tuple[str, str]],
        asked: Mapping[str, Any],
        directory: str,
        local: "_Local",
        made: "Tokens",
    ) -> None:
        """An engine has the last word: where it has other tokens, this tokenizer is not its own."""
        try:
            theirs = await self._asked(engines, asked, timeout_s=COMPARED_TIMEOUT_S)
        except Unanswered:
            return
        if theirs != made:
            local.tokenizer = None
            self._fail("tokenizer_differs")
            at = next((n for n, (a, b) in enumerate(zip(made, theirs, strict=False)) if a != b), -1)
            logger.warning(
                "The tokenizer in %s makes %d tokens of a prompt of which an engine makes %d (they"
                " differ from token %d on): it is not used any more, the engines are asked",
                directory,
                len(made),
                len(theirs),
                at if at >= 0 else min(len(made), len(theirs)),
            )

    def _fail(self, name: str) -> None:
        if self._report is not None:
            self._report.fail(name)

    async def _asked(
        self,
        engines: Sequence[tuple[str, str]],
        asked: Mapping[str, Any],
        timeout_s: float | None = None,
    ) -> Tokens:
        if not engines:
            raise Unanswered("no_engine")
        asking = [one for one in engines if not self._pause(one[0]).active]
        if not asking or self._pause_of_all.active:
            raise Unanswered("paused")
        fewest = min(self._pause(one[0]).failures for one in asking)
        asking = [one for one in asking if self._pause(one[0]).failures == fewest]
        url, api_key = asking[next(self._turn) % len(asking)]
        began = [(one, one.begin()) for one in (self._pause(url), self._pause_of_all)]
        try:
            tokens = await self._ask(url, api_key, asked, timeout_s or self._timeout_s)
        except Unanswered:
            for pause, at in began:
                pause.failed(at)
            raise
        for pause, at in began:
            pause.worked(at)
        return tokens

    async def _ask(
        self, url: str, api_key: str, asked: Mapping[str, Any], timeout_s: float
    ) -> Tokens:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        response, body = await self._http.post(
            f"{url}/tokenize", asked, headers, timeout_s, TOKENIZE_BYTES_MAX
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
