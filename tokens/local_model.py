"""A model whose files the settings name: what was read, and whether engines agree."""

import logging
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tokens.bounds import LOOP_BYTES_MAX
from tokens.model_files import ModelFilesError
from tokens.prompt import ChatPrompt, NoTokens, TextPrompt

if TYPE_CHECKING:
    from tokens.model_tokenizer import ModelTokenizer

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
    """An engine has made others. This lasts until the service is started again."""


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

    def tokenizer_for(self, form: Form) -> "ModelTokenizer | None":
        """Whether it is to be used for a form: None where it is missing, or an engine differs."""
        return None if self.standings[form] is Standing.DIFFERENT else self.tokenizer

    @property
    def tells_date(self) -> bool:
        """Whether the date stands in some of its prompts."""
        return self.tokenizer is not None and self.tokenizer.tells_date

    def agrees(self, form: Form) -> None:
        """An engine has made the same tokens."""
        if self.standings[form] is Standing.UNPROVEN:
            self.standings[form] = Standing.EQUAL

    def differs(self, difference: Difference) -> bool:
        """An engine has made others; returns whether that is news."""
        is_news = self.standings[difference.form] is not Standing.DIFFERENT
        self.standings[difference.form] = Standing.DIFFERENT
        self.differences.setdefault(difference.form, difference)
        return is_news
