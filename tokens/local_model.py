"""A model whose files the settings name: what was read, and whether engines agree."""

import logging
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tokens.bounds import LOOP_BYTES_MAX
from tokens.model_files import ModelFilesError
from tokens.prompt import ChatPrompt, NoTokens, TextPrompt
from tokens.proofs import Shape, shape_of

if TYPE_CHECKING:
    from tokens.model_tokenizer import ModelTokenizer

ODD_SHAPES_MAX: Final = 64  # of a model, of which engines are asked alone; beyond, of all

INSTALL_TEXT: Final = "`.venv/bin/pip install -e '.[text]'`"
"""In the clone of the repository: `reprise` of the public index is another project."""

_logger = logging.getLogger(__name__)


class Form(StrEnum):
    """What a prompt was."""

    CHAT = "chat"
    RESPONSE = "response"
    COMPLETION = "completion"


class Standing(StrEnum):
    """How far tokens of a form are proven."""

    UNPROVEN = "unproven"
    """No engine has said anything of them yet."""
    EQUAL = "equal"
    """Engines have made the same tokens, each time."""
    DIFFERENT = "different"
    """An engine has made others, and nothing shows of which prompts it makes the same. This lasts
    until the service is started again.
    """


class Difference(NamedTuple):
    """Where an engine has made other tokens.

    Attributes:
        engine: the base URL of the engine; "" where an answer's `usage` said so.
        ours: how many tokens were made here.
        theirs: how many the engine has.
        position: of the first that differs; -1 where the engine said nothing but their number.
        at: Unix seconds.
    """

    form: Form
    engine: str
    ours: int
    theirs: int
    position: int
    at: float


def form_of(prompt: ChatPrompt | TextPrompt) -> Form:
    """Chats go through the template, completions through what the tokenizer adds by itself, and
    responses through both.
    """
    if isinstance(prompt, TextPrompt):
        return Form.COMPLETION
    return Form.RESPONSE if prompt.is_response else Form.CHAT


class LocalModel:
    """See the module.

    Attributes:
        name: of the model, as requests have it.
        path: the directory of its files.
        tokenizer: what was read; None where nothing was, or could be.
        missing: why there is no tokenizer: NO_LIBRARY or UNREADABLE; None while it was not read.
        trouble: that in words; "" for none.
        standings: by form.
        differences: by form, the first.
        odd: shapes of which engines make other tokens, while they make the same of others.
        made: prompts that were made tokens of, by form.
        loop_bytes_max: of a prompt, as JSON, whose text is made on the event loop: half of the
            smallest for which the template was too slow there.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.tokenizer: ModelTokenizer | None = None
        self.missing: NoTokens | None = None
        self.trouble = ""
        self.standings = dict.fromkeys(Form, Standing.UNPROVEN)
        self.differences: dict[Form, Difference] = {}
        self.odd: dict[Shape, Form] = {}
        self.made = dict.fromkeys(Form, 0)
        self.loop_bytes_max = LOOP_BYTES_MAX

    def read(self, clock: Callable[[], float]) -> None:
        """Reads its files."""
        try:
            # Its libraries are an extra, and take a while.
            from tokens.model_tokenizer import ModelTokenizer

            self.tokenizer = ModelTokenizer.read(self.path, clock)
        except ImportError:
            self.missing = NoTokens.NO_LIBRARY
            self.trouble = (
                "expected the extra `text` (tokenizers and jinja2) beside tokens, got none:"
                f" {INSTALL_TEXT}, and start again"
            )
        except ModelFilesError as error:
            self.missing = NoTokens.UNREADABLE
            self.trouble = str(error)
        except Exception:
            _logger.exception("Unexpected error while %s was read; engines are asked", self.path)
            self.missing = NoTokens.UNREADABLE
            self.trouble = f"cannot use the files in {self.path}: the log has the unexpected error"

    def tokenizer_for(self, prompt: ChatPrompt | TextPrompt) -> "ModelTokenizer | None":
        """What is to be used for a prompt: None where it is missing, or an engine differs."""
        if self.standings[form_of(prompt)] is Standing.DIFFERENT:
            return None
        return None if self.odd and shape_of(prompt) in self.odd else self.tokenizer

    @property
    def tells_date(self) -> bool:
        """Whether the date stands in some of its prompts."""
        return self.tokenizer is not None and self.tokenizer.tells_date

    def agrees(self, form: Form) -> None:
        """An engine has made the same tokens."""
        if self.standings[form] is Standing.UNPROVEN:
            self.standings[form] = Standing.EQUAL

    def differs(self, difference: Difference, shape: Shape, *, was_proven: bool) -> bool:
        """An engine has made others; returns whether that is news. Where engines make the same of
        other shapes, it says nothing of these: one odd request turns off no others.

        Args:
            was_proven: whether engines had made the same of that shape: then no shape proves much.
        """
        form = difference.form
        self.differences.setdefault(form, difference)
        if self.standings[form] is Standing.DIFFERENT or shape in self.odd:
            return False
        has_room = len(self.odd) < ODD_SHAPES_MAX
        if self.standings[form] is Standing.EQUAL and has_room and not was_proven:
            self.odd[shape] = form
        else:
            self.standings[form] = Standing.DIFFERENT
        return True
