"""Prompts to token ids: by the model's own files where these are proven, else by an engine.

    request -> prompt.py -> Tokenizer -> model_tokenizer.py   in this process
                                      -> an engine's /tokenize  where there is nothing better

What is made is compared with an engine's `/tokenize`: probes at each engine of a model that is new,
and again from time to time; the first prompt of each shape at each engine (`tokens.proofs`), the
first requests, and one in many later on, after they were answered. The count in an engine's `usage`
is compared for each request (`counted`). Where tokens that were made here differ, the engines are
asked from then on, and a condition says so.

Nothing that a request has is logged, or stands in an error.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from schemas.causes import cause_of
from schemas.clock import Clock
from schemas.conditions import Conditions, Part
from schemas.errors import RepriseError
from schemas.limits import MIB, TOKENIZE_WAIT_S
from schemas.registration import SGLANG
from tokens.bounds import (
    PROMPT_CHARACTERS_MAX,
    RENDERING_LOOP_S_MAX,
    RENDERING_S_MAX,
)
from tokens.engine_questions import EngineQuestions
from tokens.engine_tokenizer import (
    RENDER,
    TOKENIZE,
    question,
    read_answer,
    read_rendering,
    render_question,
    text_question,
)
from tokens.interface import Engine, Engines, Tokens, TokenSource
from tokens.local_model import Difference, LocalModel, Standing, form_of
from tokens.probes import PROBES
from tokens.prompt import (
    ChatPrompt,
    NoTokens,
    NoTokensError,
    Prompt,
    TextPrompt,
    TokenPrompt,
    cut_off,
)
from tokens.proofs import Proofs, Shape, may_tell_other_dates, shape_of, unseen
from tokens.rendering_errors import TemplateSlowError

if TYPE_CHECKING:
    from tokens.model_tokenizer import ModelTokenizer

TOKENIZE_BYTES_MAX: Final = 32 * MIB  # of an engine's answer: some four million tokens
COMPARED_WAIT_S: Final = 5.0  # the same, where nobody waits for it
ASKED_AT_ONCE_MAX: Final = 64  # questions to engines under way; reason="busy"
PROMPTS_WAITING_MAX: Final = 64  # prompts that wait for a thread, or have one; reason="busy"
LARGE_CHARACTERS: Final = 65_536  # of what is new, from which on a prompt waits for the large ones
LARGE_WAIT_S: Final = 2.0  # that a prompt waits while another large one has its thread
PAUSE_S: Final = 2.0  # in which an engine is not asked that has not answered
MEDIA_AT_ONCE_MAX: Final = 8  # of these with images or the like, which an engine has to read
MEDIA_PAUSE_S: Final = 30.0  # the same as PAUSE_S, of such questions alone
RENDER_PAUSE_S: Final = 600.0  # in which /render is not asked that could not be used
PAUSES_MAX: Final = 1024  # engines whose silence is remembered; the oldest goes

LOOP_NEW_CHARACTERS_MAX: Final = 4_096  # of them, that are not kept: two milliseconds

COMPARED_FIRST: Final = 5  # requests of a form that are all compared
COMPARED_EVERY: Final = 500  # of those after them
COMPARING_MAX: Final = 4  # comparisons under way; a further one is left out
PROBED_LOOK_S: Final = 2.0  # from one look for new engines to the next
PROBED_AGAIN_S: Final = 600.0  # from one probe of an engine to the next
PROBED_MAX: Final = 4096  # engines whose probe is remembered; the oldest goes

_CLIENTS_FAULTS: Final = frozenset({400, 422})

_Result = TypeVar("_Result")
_Text = ChatPrompt | TextPrompt
_logger = logging.getLogger(__name__)


class Tokenizer:
    """See the module, and `tokens.interface.PromptTokenizer`. One event loop.

    Args:
        paths: the directories of models, by name.
        clock: of templates, and for what was when.
        conditions: of the role; None: nobody is told of differences.

    Attributes:
        models: by name; those that the settings name.
        made: prompts that were made tokens of, by source.
        tokens_made: of them, by source.
        reused: of them, those that were kept from earlier prompts.
        unproven: prompts whose tokens were not proven for each engine, by source.
        missing: prompts without tokens, by reason.
        compared: comparisons with engines, by what came of them: `equal`, `different`, `silent`,
            `left_out`.
        questions: the latest prompts that engines were asked about, but for those with media.
        faults: unexpected errors of ours.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        engines: Engines,
        clock: Clock,
        conditions: Conditions | None = None,
    ) -> None:
        self.models = {name: LocalModel(name, path) for name, path in paths.items()}
        self.made: Counter[str] = Counter()
        self.tokens_made: Counter[str] = Counter()
        self.reused = 0
        self.unproven: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()
        self.questions = EngineQuestions()
        self.faults = 0
        self._engines = engines
        self._clock = clock
        self._conditions = conditions
        # A large prompt takes seconds, in which no other one waits for it.
        self._pool = ThreadPoolExecutor(1, "tokens")
        self._large_pool = ThreadPoolExecutor(1, "large-tokens")
        self._large = asyncio.Lock()
        self._proofs = Proofs(clock.monotonic, clock.unix)
        self._waiting = 0
        self._asked = 0
        self._asked_of_media = 0
        self._turn = 0
        # By base URL, of /render with its path, and whether they are of media alone.
        self._pauses: OrderedDict[tuple[str, bool], float] = OrderedDict()
        self._probed: OrderedDict[tuple[str, Engine], float] = OrderedDict()
        self._comparing: set[asyncio.Task[None]] = set()
        self._proving: set[tuple[str, Shape, Engine]] = set()
        self._watch: asyncio.Task[None] | None = None

    def read(self) -> None:
        """Reads the files of the models. A second each, in which the library lets no other thread
        run: to be called before anything is served.
        """
        for model in self.models.values():
            model.read(self._clock.monotonic)
        self._tell()

    def begin(self) -> None:
        """The server serves: looks for engines to compare with."""
        if self._watch is None and self.models:
            self._watch = asyncio.create_task(self._probe_engines())

    def end(self) -> None:
        """The server stops."""
        for task in (*self._comparing, *filter(None, (self._watch,))):
            task.cancel()
        self._watch = None
        for pool in (self._pool, self._large_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def tokens(self, prompt: Prompt, tenant_id: str = "") -> Tokens:
        """See `PromptTokenizer`."""
        try:
            found = await self._tokens(prompt, tenant_id)
        except NoTokensError as error:
            self.missing[error.reason.value] += 1
            raise
        self.made[found.source.value] += 1
        self.tokens_made[found.source.value] += found.length
        self.reused += found.reused
        if not found.is_proven:
            self.unproven[found.source.value] += 1
        return found

    def counted(self, prompt: Prompt, tokens: Tokens, prompt_tokens: int) -> None:
        """See `PromptTokenizer`."""
        if tokens.source is TokenSource.GIVEN or tokens.length == prompt_tokens:
            return  # as many are no proof: others may have them, too
        assert not isinstance(prompt, TokenPrompt)
        shape = shape_of(prompt)
        was_proven = self._proofs.is_proven(prompt.model, shape)
        self._proofs.contradict(prompt.model, shape)
        model = self.models.get(prompt.model)
        if model is None or tokens.source is not TokenSource.LOCAL:
            return
        if isinstance(prompt, ChatPrompt) and prompt.has_unasked:
            return  # what is unasked of one request says nothing of others
        difference = Difference(
            form_of(prompt), "", tokens.length, prompt_tokens, -1, self._clock.unix()
        )
        self._note(model, difference, shape, was_proven=was_proven)

    async def _tokens(self, prompt: Prompt, tenant_id: str) -> Tokens:
        if isinstance(prompt, TokenPrompt):
            return Tokens(cut_off(prompt.content, prompt.truncation), TokenSource.GIVEN)
        if _size_bytes(prompt) > 4 * PROMPT_CHARACTERS_MAX:
            text = f"expected at most {PROMPT_CHARACTERS_MAX} characters with tools and documents"
            raise NoTokensError(NoTokens.TOO_LARGE, f"{text}, got more")
        model = self.models.get(prompt.model)
        if isinstance(prompt, ChatPrompt) and prompt.has_media:
            return await self._asked_about_media(prompt, tenant_id)
        if model is not None:
            tokenizer = model.tokenizer_for(prompt)
            if tokenizer is not None:
                kind = self._kind(prompt.model, tenant_id)
                try:
                    return await self._made_here(model, tokenizer, prompt, tenant_id, kind)
                except NoTokensError as error:
                    engines = self._engines.of_model(prompt.model, tenant_id)
                    if error.reason is not NoTokens.UNSUPPORTED or not engines:
                        raise
        return await self._asked_of_any(prompt, tenant_id, model)

    # The model's own files

    def _kind(self, name: str, tenant_id: str) -> str:
        """Of the engines of a model; all are of one kind, or make the same tokens."""
        return next((one.kind for one in self._engines.of_model(name, tenant_id)), "")

    async def _made_here(
        self,
        model: LocalModel,
        tokenizer: "ModelTokenizer",
        prompt: _Text,
        tenant_id: str,
        kind: str,
    ) -> Tokens:
        text = await self._text(model, tokenizer, prompt, kind)
        size = tokenizer.new_characters(text, tenant_id)
        if size <= LOOP_NEW_CHARACTERS_MAX:
            content, reused = tokenizer.tokens_of(text, prompt, tenant_id)
        else:
            content, reused = await self._on_thread(
                size, lambda: tokenizer.tokens_of(text, prompt, tenant_id)
            )
        form = form_of(prompt)
        model.made[form] += 1
        is_due = model.made[form] <= COMPARED_FIRST or not model.made[form] % COMPARED_EVERY
        made = _Made(prompt, shape_of(prompt), content, model, text)
        is_proven = self._are_proven(made, tenant_id, is_due=is_due)
        return Tokens(content, TokenSource.LOCAL, reused, is_proven=is_proven)

    async def _text(
        self, model: LocalModel, tokenizer: "ModelTokenizer", prompt: _Text, kind: str
    ) -> str:
        if isinstance(prompt, TextPrompt):
            return prompt.text
        size_bytes = _size_bytes(prompt)
        if size_bytes <= model.loop_bytes_max:
            try:
                return tokenizer.text_of(prompt, kind, RENDERING_LOOP_S_MAX)
            except TemplateSlowError:
                model.loop_bytes_max = size_bytes // 2
        try:
            return await self._on_thread(
                size_bytes, lambda: tokenizer.text_of(prompt, kind, RENDERING_S_MAX)
            )
        except TemplateSlowError as error:
            raise NoTokensError(NoTokens.TEMPLATE, str(error)) from error

    async def _on_thread(self, size: int, make: Callable[[], _Result]) -> _Result:
        """Args:
        size: of what is made tokens or text of, characters or bytes.
        """
        if self._waiting >= PROMPTS_WAITING_MAX:
            text = f"expected at most {PROMPTS_WAITING_MAX} large prompts at once: try again"
            raise NoTokensError(NoTokens.BUSY, text)
        self._waiting += 1
        run = asyncio.get_running_loop().run_in_executor
        try:
            if size <= LARGE_CHARACTERS:
                return await run(self._pool, make)
            try:
                async with asyncio.timeout(LARGE_WAIT_S):
                    await self._large.acquire()
            except TimeoutError as error:
                text = f"others of more than {LARGE_CHARACTERS} characters come first: try again"
                raise NoTokensError(NoTokens.BUSY, text) from error
            future = run(self._large_pool, make)
            # It goes on behind a client that has gone, and has its thread until then.
            future.add_done_callback(lambda _: self._large.release())
            return await asyncio.shield(future)
        finally:
            self._waiting -= 1

    # Engines

    async def _asked_of_any(
        self, prompt: _Text, tenant_id: str, model: LocalModel | None
    ) -> Tokens:
        engines = self._engines.of_model(prompt.model, tenant_id)
        if not engines:
            raise _no_tokenizer(model)
        is_answered = True
        try:
            engine, answer = await self._first_answer(prompt, engines)
            content = cut_off(answer, prompt.truncation)
        except NoTokensError as error:
            is_answered = error.reason is NoTokens.ENGINE_REFUSES
            raise
        finally:
            now = self._clock.unix()
            self.questions.note(tenant_id, prompt.model, now, is_answered=is_answered)
        made = _Made(prompt, shape_of(prompt), content, maker=engine)
        is_first = not self._proofs.proven(prompt.model, made.shape, engines)
        if is_first and not unseen(prompt, engine):
            self._proofs.prove(prompt.model, made.shape, engine, tells_date=True)
        is_proven = self._are_proven(made, tenant_id)
        return Tokens(content, TokenSource.ENGINE, is_proven=is_proven)

    async def _first_answer(self, prompt: _Text, engines: Sequence[Engine]) -> tuple[Engine, bytes]:
        """Of one engine; where that is silent, of another one."""
        engine = self._awake(engines, PAUSE_S, has_media=False)
        try:
            return engine, await self._ask(engine, question(prompt, engine.kind), TOKENIZE_WAIT_S)
        except NoTokensError as error:
            if error.reason is not NoTokens.ENGINE_SILENT or len(engines) == 1:
                raise
        engine = self._awake(engines, PAUSE_S, has_media=False)  # it is not asked for a while
        return engine, await self._ask(engine, question(prompt, engine.kind), TOKENIZE_WAIT_S)

    async def _asked_about_media(self, prompt: ChatPrompt, tenant_id: str) -> Tokens:
        """What an engine makes of a chat with media: it has to read them, and may be slow."""
        every = self._engines.of_model(prompt.model, tenant_id)
        engines = [one for one in every if one.kind != SGLANG]
        if not engines:
            text = "the messages have parts that are no text, and no engine can be asked about them"
            raise NoTokensError(NoTokens.MEDIA, text)
        engine = self._awake(engines, MEDIA_PAUSE_S, has_media=True)
        body = question(prompt, engine.kind)
        if self._asked_of_media >= MEDIA_AT_ONCE_MAX:
            text = f"expected at most {MEDIA_AT_ONCE_MAX} chats with media at once: try again"
            raise NoTokensError(NoTokens.BUSY, text)
        self._asked_of_media += 1
        try:
            made = await self._rendered(engine, prompt)
            if made is None:
                found = await self._ask(engine, body, TOKENIZE_WAIT_S, has_media=True)
                made = Tokens(cut_off(found, prompt.truncation), TokenSource.ENGINE)
        finally:
            self._asked_of_media -= 1
        # Others would have to read the media, too: they are not asked, and stay unproven.
        is_alone = len(every) == 1 and self._engines.are_all(prompt.model, tenant_id)
        return made._replace(is_proven=is_alone and not unseen(prompt, engine))

    async def _rendered(self, engine: Engine, prompt: ChatPrompt) -> Tokens | None:
        """The tokens with what the engine calls the media among them; None where it does not say
        so, and is asked for tokens alone. What a client has sent wrong ends no asking.
        """
        key = engine.url + RENDER, True
        if prompt.truncation is not None or self._pauses.get(key, 0.0) > self._clock.monotonic():
            return None
        answer = None
        try:
            answer = await self._engines.post(
                engine.url,
                RENDER,
                render_question(prompt),
                wait_s=TOKENIZE_WAIT_S,
                bytes_max=TOKENIZE_BYTES_MAX,
            )
            content, media = read_rendering(answer)
        except RepriseError:
            if answer is None or answer.status not in _CLIENTS_FAULTS:
                self._pause(key, RENDER_PAUSE_S)
            return None
        return Tokens(content, TokenSource.ENGINE, media=media)

    def _awake(self, engines: Sequence[Engine], pause_s: float, *, has_media: bool) -> Engine:
        """One that is not silent; they take turns."""
        now = self._clock.monotonic()
        awake = [one for one in engines if self._pauses.get((one.url, has_media), 0.0) <= now]
        if not awake:
            text = f"no engine of the model has answered /tokenize in the last {pause_s:g} s"
            raise NoTokensError(NoTokens.ENGINE_SILENT, text)
        self._turn += 1
        return awake[self._turn % len(awake)]

    async def _ask(
        self, engine: Engine, body: bytes, wait_s: float, *, has_media: bool = False
    ) -> bytes:
        """Raises NoTokensError: ENGINE_SILENT, ENGINE_REFUSES or BUSY."""
        pause_s = MEDIA_PAUSE_S if has_media else PAUSE_S
        if self._asked >= ASKED_AT_ONCE_MAX:
            text = f"expected at most {ASKED_AT_ONCE_MAX} questions to engines at once: try again"
            raise NoTokensError(NoTokens.BUSY, text)
        self._asked += 1
        try:
            answer = await self._engines.post(
                engine.url, TOKENIZE, body, wait_s=wait_s, bytes_max=TOKENIZE_BYTES_MAX
            )
            return read_answer(answer)
        except NoTokensError as error:
            if error.reason is NoTokens.ENGINE_SILENT:
                self._pause((engine.url, has_media), pause_s)
            raise
        except RepriseError as error:
            self._pause((engine.url, has_media), pause_s)
            text = f"the engine does not answer /tokenize: {cause_of(error)}"
            raise NoTokensError(NoTokens.ENGINE_SILENT, text) from error
        finally:
            self._asked -= 1

    def _pause(self, key: tuple[str, bool], pause_s: float) -> None:
        self._pauses[key] = self._clock.monotonic() + pause_s
        self._pauses.move_to_end(key)
        while len(self._pauses) > PAUSES_MAX:
            self._pauses.popitem(last=False)

    # Comparisons

    def _are_proven(self, made: "_Made", tenant_id: str, *, is_due: bool = False) -> bool:
        """Whether each engine is known to make such tokens; those that are not are asked, behind
        the answer, and one of them where a comparison is due. Where an engine that is not has made
        these, one that is is asked for them.
        """
        name, shape = made.prompt.model, made.shape
        engines = self._engines.of_model(name, tenant_id)
        is_lacking, left = self._proofs.lacking(name, shape, engines)
        if made.maker is not None:
            proven = self._proofs.proven(name, shape, engines)
            left = left if made.maker in proven else proven[:1]
            left = [one for one in left if one != made.maker]
        now = self._clock.monotonic()
        if is_due and engines and not left:
            self._turn += 1
            left = [engines[self._turn % len(engines)]]
        for engine in left:
            is_silent = self._pauses.get((engine.url, False), 0.0) > now
            if not is_silent and (name, shape, engine) not in self._proving:
                self._begin(self._prove(engine, made))
        return bool(engines) and not is_lacking and self._engines.are_all(name, tenant_id)

    async def _prove(self, engine: Engine, made: "_Made") -> None:
        key = made.prompt.model, made.shape, engine
        self._proving.add(key)
        try:
            await self._compare_with(engine, made)
        except NoTokensError as error:
            if error.reason is NoTokens.ENGINE_REFUSES:
                self._proofs.refuse(*key)
            raise
        finally:
            self._proving.discard(key)

    def _begin(self, comparison: Coroutine[Any, Any, None]) -> None:
        if len(self._comparing) >= COMPARING_MAX:
            comparison.close()
            self.compared["left_out"] += 1
            return
        task = asyncio.create_task(self._guarded(comparison))
        self._comparing.add(task)
        task.add_done_callback(self._comparing.discard)

    async def _guarded(self, comparison: Coroutine[Any, Any, None]) -> None:
        try:
            await comparison
        except NoTokensError:
            self.compared["silent"] += 1
        except Exception:
            self.faults += 1
            _logger.exception("Unexpected error while tokens were compared; going on")

    async def _compare_with(self, engine: Engine, made: "_Made") -> None:
        prompt, shape, ours, model, text, maker = made
        compared = [engine] if maker is None else [engine, maker]
        is_proof = not any(unseen(prompt, one) for one in compared)
        try:
            answered = await self._ask(engine, question(prompt, engine.kind), COMPARED_WAIT_S)
        except NoTokensError as error:
            is_refused = error.reason is NoTokens.ENGINE_REFUSES
            if model is None or engine.kind != SGLANG or not is_refused:
                raise
            # Before 0.5.12 it takes no messages: of these the tokenizer alone is compared.
            is_proof = False
            body = text_question(prompt.model, text, special=prompt.add_special_tokens)
            answered = await self._ask(engine, body, COMPARED_WAIT_S)
        theirs = cut_off(answered, prompt.truncation)
        if theirs != ours and model is not None:
            ours = await self._made_again(model, prompt, engine.kind, ours)
        was_proven = theirs != ours and self._proofs.is_proven(prompt.model, shape)
        if theirs == ours and is_proof:
            tells_date = model is None or model.tells_date
            for one in compared:
                self._proofs.prove(prompt.model, shape, one, tells_date=tells_date)
        else:
            for one in compared:
                self._proofs.refuse(prompt.model, shape, one)
        if theirs == ours:
            self.compared["equal"] += 1
            if model is not None:
                model.agrees(form_of(prompt))
            return
        if model is None:
            self.compared["different"] += 1
            return
        position = next(
            (at for at in range(0, len(ours), 4) if ours[at : at + 4] != theirs[at : at + 4]),
            len(ours),
        )
        counts = len(ours) // 4, len(theirs) // 4
        now = self._clock.unix()
        if model.tells_date and may_tell_other_dates(now):
            self.compared["different"] += 1  # the engine's clock is another one
            return
        difference = Difference(form_of(prompt), engine.url, *counts, position // 4, now)
        self._note(model, difference, shape, was_proven=was_proven)

    async def _made_again(
        self, model: LocalModel, prompt: _Text, kind: str, before: bytes
    ) -> bytes:
        """The tokens as they are now: a template may tell the date, which has changed meanwhile."""
        if model.tokenizer is None:
            return before
        text = await self._text(model, model.tokenizer, prompt, kind)
        return model.tokenizer.tokens_of(text, prompt)[0]

    def _note(
        self, model: LocalModel, difference: Difference, shape: Shape, *, was_proven: bool
    ) -> None:
        self.compared["different"] += 1
        if model.differs(difference, shape, was_proven=was_proven):
            self._tell()

    def _tell(self) -> None:
        """Sets the condition that says all that is wrong, or clears it."""
        said = list(chain.from_iterable(map(_trouble, self.models.values())))
        if self._conditions is None:
            return
        if said:
            reasons = {reason for reason, _ in said}
            reason = "differs" if "differs" in reasons else min(reasons)
            self._conditions.set(Part.TOKENS, reason, "; ".join(text for _, text in said))
        else:
            self._conditions.clear(Part.TOKENS)

    async def _probe_engines(self) -> None:
        """Compares each engine of each model, once it is there and then now and again."""
        while True:
            for model in self.models.values():
                for engine in self._engines.of_model(model.name, ""):
                    await self._guarded(self._probe(model, engine))
            await asyncio.sleep(PROBED_LOOK_S)

    async def _probe(self, model: LocalModel, engine: Engine) -> None:
        key = model.name, engine
        now = self._clock.monotonic()
        if now < self._probed.get(key, -PROBED_AGAIN_S) + PROBED_AGAIN_S:
            return
        if now < self._pauses.get((engine.url, False), 0.0):
            return
        for make in PROBES:
            prompt = make(model.name)
            tokenizer = model.tokenizer_for(prompt)
            if tokenizer is None:
                continue
            with suppress(NoTokensError):  # a template may refuse a probe
                text = await self._text(model, tokenizer, prompt, engine.kind)
                ours, _ = tokenizer.tokens_of(text, prompt)
                made = _Made(prompt, shape_of(prompt), ours, model, text)
                await self._compare_with(engine, made)
        if self._pauses.get((engine.url, False), 0.0) <= now:
            self._probed[key] = now
            self._probed.move_to_end(key)
            while len(self._probed) > PROBED_MAX:
                self._probed.popitem(last=False)


class _Made(NamedTuple):
    """Tokens of a prompt, and the model and the text by which they were made here, or the engine
    that was asked for them.
    """

    prompt: _Text
    shape: Shape
    content: bytes
    model: LocalModel | None = None
    text: str = ""
    maker: Engine | None = None


def _no_tokenizer(model: LocalModel | None) -> NoTokensError:
    if model is not None and model.missing is not None:
        return NoTokensError(model.missing, model.trouble)
    if model is not None:
        text = "an engine has computed other tokens, and none has an HTTP server to be asked"
        return NoTokensError(NoTokens.DIFFERS, text)
    text = (
        "the settings name no files for the model (tokens in reprise.toml), and no engine that"
        " serves it has an http_endpoint, or a url of HTTP, to be asked at"
    )
    return NoTokensError(NoTokens.NO_TOKENIZER, text)


def _trouble(model: LocalModel) -> Sequence[tuple[str, str]]:
    """What is wrong with a model, as reason and text."""
    if model.missing is not None:
        return [(model.missing.value, f"tokens of the model {model.name}: {model.trouble}")]
    return [
        (
            "differs",
            f"tokens of the model {model.name} ({one.form}) are not those that"
            f" {one.engine or 'an engine'} computes: {one.ours} here, {one.theirs} there"
            + (f", from token {one.position} on" if one.position >= 0 else "")
            + "; the engines are asked for tokens instead"
            + ("" if model.standings[form] is Standing.DIFFERENT else " of prompts like that one"),
        )
        for form, one in model.differences.items()
    ]


def _size_bytes(prompt: _Text) -> int:
    """Of all that a template may take. Raises NoTokensError where it is no JSON."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    whole = (prompt.messages, prompt.tools, prompt.documents, prompt.template_kwargs)
    try:
        return len(msgspec.json.encode(whole))
    except (TypeError, ValueError, RecursionError) as error:  # what msgpack has, and JSON has not
        text = "expected messages, tools and documents as JSON has them, got something else"
        raise NoTokensError(NoTokens.UNSUPPORTED, text) from error
