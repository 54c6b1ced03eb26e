"""One model's own tokenizer and chat template: prompts to token ids, in this process.

    prompt -> the template's variables -> text -> pieces -> token ids

Pieces of a text whose tokens cannot depend on each other (`tokens.pieces`) are kept: of a
conversation's next turn only what is new is made tokens of. A tenant's pieces are its own: neither
a count nor a time tells one tenant what another has sent.
"""

import os
import re
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from schemas.limits import MIB
from tokens.bounds import PROMPT_CHARACTERS_MAX
from tokens.conversation import variables_of
from tokens.model_files import ModelFiles, ModelFilesError, TokenFlags, read_model_files
from tokens.pieces import AddedToken, cuts, pieces_of
from tokens.prompt import ChatPrompt, NoTokens, NoTokensError, TextPrompt, cut_off
from tokens.rendering_errors import TemplateError, TemplateSlowError
from tokens.template import ChatTemplate

KEPT_BYTES_MAX: Final = 64 * MIB  # of the pieces of a model that are kept; those longest unused go
KEPT_PIECE_BYTES_MAX: Final = 4 * MIB  # of one; a larger one is made anew each time

_PROBE: Final = "The quick brown fox"
_CHAT_PROBE: Final = ("user", "assistant", "user", "assistant", "user")
_ENTRY_BYTES: Final = 200  # of a kept piece beside its text and its tokens


class _Piece(NamedTuple):
    owner: str
    text: str


class ModelTokenizer:
    """See the module. Of any thread.

    Attributes:
        cut: the added token that texts are cut at; "" for none.
        kept_bytes: what the pieces take that are kept.
    """

    def __init__(self, files: ModelFiles, clock: Callable[[], float]) -> None:
        """Some hundred milliseconds.

        Raises:
            ImportError: the extra `text` is not installed.
            ModelFilesError: the files are no tokenizer, or no template.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads outlive a fork badly
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(files.tokenizer)
        except Exception as error:  # the library raises no other
            raise ModelFilesError("expected a tokenizer in tokenizer.json, found none") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = files.splits_special_tokens
        self._special = dict(files.special_tokens)
        try:
            self._template = ChatTemplate(files.template, clock) if files.template else None
            self._tool_template = (
                ChatTemplate(files.tool_template, clock) if files.tool_template else self._template
            )
        except TemplateError as error:
            raise ModelFilesError(f"the chat template cannot be used: {error}") from error
        templates = filter(None, (self._template, self._tool_template))
        self.tells_date = any(one.tells_date for one in templates)
        self._kept: OrderedDict[_Piece, bytes] = OrderedDict()
        self.kept_bytes = 0
        self._lock = threading.Lock()
        self._unknown = self._find_unknown(files)
        self._before, self._behind = self._added_by_itself()
        self.cut = "" if files.splits_special_tokens else self._find_cut()

    @classmethod
    def read(cls, path: Path, clock: Callable[[], float]) -> "ModelTokenizer":
        """Of the model's directory; see the constructor, and `read_model_files`."""
        return cls(read_model_files(path), clock)

    def text_of(self, prompt: ChatPrompt | TextPrompt, kind: str, seconds: float) -> str:
        """The prompt's text, special tokens and all.

        Args:
            kind: of the engine, as registrations name it.
            seconds: that the template may take.

        Raises:
            NoTokensError: TEMPLATE, UNSUPPORTED or TOO_LARGE.
            TemplateSlowError: the template takes longer.
        """
        if isinstance(prompt, TextPrompt):
            return prompt.text
        if prompt.chat_template is not None:
            text = "the request has a chat template of its own, which only an engine may trust"
            raise NoTokensError(NoTokens.UNSUPPORTED, text)
        template = self._tool_template if prompt.tools else self._template
        if template is None:
            raise NoTokensError(NoTokens.TEMPLATE, "the model has no chat template")
        try:
            variables = self._special | variables_of(prompt, template, kind)
            if prompt.continue_final_message:
                text = template.continued(variables, seconds)
            else:
                text = template.rendered(variables, seconds)
        except TemplateSlowError:
            raise
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
            # The template's own words may have what the request has.
            text = "the model's chat template refuses the messages"
            raise NoTokensError(NoTokens.TEMPLATE, text) from None
        if len(text) > PROMPT_CHARACTERS_MAX:
            raise NoTokensError(NoTokens.TOO_LARGE, "the prompt is too large")
        return text

    def new_characters(self, text: str, owner: str = "") -> int:
        """How much of the text is to be made tokens of: the rest is kept of that tenant."""
        return sum(len(one.text) for one in self._pieces(text, owner) if one not in self._kept)

    def tokens_of(
        self, text: str, prompt: ChatPrompt | TextPrompt, owner: str = ""
    ) -> tuple[bytes, int]:
        """Token ids of the prompt's text, (n,) u32 little-endian, and how many were kept.

        Args:
            owner: the tenant whose pieces are kept apart.

        Raises:
            NoTokensError: UNSUPPORTED.
        """
        if self._unknown is not None and self._unknown.search(text):
            said = "the text has a token that another file of the model than tokenizer.json adds"
            raise NoTokensError(NoTokens.UNSUPPORTED, said)
        found, reused = self._encoded(self._pieces(text, owner))
        if prompt.add_special_tokens:
            found = self._before + found + self._behind
        return cut_off(found, prompt.truncation), reused

    def _pieces(self, text: str, owner: str) -> list["_Piece"]:
        pieces = pieces_of(text, self.cut) if self.cut else [text]
        return [_Piece(owner, piece) for piece in pieces]

    def _encoded(self, pieces: Sequence["_Piece"]) -> tuple[bytes, int]:
        kept = self._kept
        with self._lock:
            found = [kept.get(piece) for piece in pieces]
            for piece, tokens in zip(pieces, found, strict=True):
                if tokens is not None:
                    kept.move_to_end(piece)
        missing = [n for n, tokens in enumerate(found) if tokens is None]
        if not missing:
            whole = b"".join(filter(None, found))
            return whole, len(whole) // 4
        # By batch, which leaves other threads the interpreter.
        texts = [pieces[n].text for n in missing]
        try:
            made = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises no other; half a surrogate pair is one case
            text = "the model's tokenizer refuses the text"
            raise NoTokensError(NoTokens.UNSUPPORTED, text) from error
        reused = sum(len(tokens) for tokens in found if tokens is not None) // 4
        for n, encoding in zip(missing, made, strict=True):
            found[n] = array("I", encoding.ids).tobytes()
        self._keep((pieces[n], found[n] or b"") for n in missing)
        return b"".join(filter(None, found)), reused

    def _keep(self, made: Iterable[tuple["_Piece", bytes]]) -> None:
        with self._lock:
            for piece, tokens in made:
                size = _size(piece, tokens)
                if size <= KEPT_PIECE_BYTES_MAX and piece not in self._kept:
                    self._kept[piece] = tokens
                    self.kept_bytes += size
            while self.kept_bytes > KEPT_BYTES_MAX:
                self.kept_bytes -= _size(*self._kept.popitem(last=False))

    def _added_by_itself(self) -> tuple[bytes, bytes]:
        """The special tokens that the tokenizer puts before and behind a text.

        Raises:
            ModelFilesError: it does something else to a text.
        """
        plain = self._tokenizer.encode(_PROBE, add_special_tokens=False).ids
        special = self._tokenizer.encode(_PROBE, add_special_tokens=True).ids
        for before in range(len(special) - len(plain) + 1):
            if special[before : before + len(plain)] == plain:
                behind = special[before + len(plain) :]
                return array("I", special[:before]).tobytes(), array("I", behind).tobytes()
        raise ModelFilesError("expected a tokenizer that adds tokens before or behind a text only")

    def _find_unknown(self, files: ModelFiles) -> "re.Pattern[str] | None":
        """What only engines make a token of, or find otherwise in a text."""
        known = {
            one.content: TokenFlags(one.single_word, one.lstrip, one.rstrip, one.normalized)
            for one in self._tokenizer.get_added_tokens_decoder().values()
        }
        unknown = [
            re.escape(content)
            for content, flags in files.added_tokens.items()
            if content not in known or flags not in (None, known[content])
        ]
        return re.compile("|".join(unknown), re.IGNORECASE) if unknown else None

    def _find_cut(self) -> str:
        """The added token that stands oftenest in a chat, of those that a text may be cut at."""
        added = [
            AddedToken(one.content, one.normalized, one.lstrip, one.single_word)
            for one in self._tokenizer.get_added_tokens_decoder().values()
        ]
        chat = self._probe_chat()
        counts = {token: chat.count(token) for token in cuts(added) if token in chat}
        return max(counts, key=lambda token: counts[token], default="")

    def _probe_chat(self) -> str:
        messages = [{"role": role, "content": _PROBE} for role in _CHAT_PROBE]
        try:
            return self.text_of(ChatPrompt("", messages), "", 1.0)
        except (NoTokensError, TemplateSlowError):
            return ""


def _size(piece: _Piece, tokens: bytes) -> int:
    """What a kept piece takes, about; a character may take four bytes, and most take one."""
    return sys.getsizeof(piece.text) + sys.getsizeof(tokens) + _ENTRY_BYTES
