"""The setting of this room: which models' files are where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from console.settings import setting
from schemas.limits import NAME_BYTES_MAX

MODELS_MAX: Final = 256  # whose files are read


class _ModelPaths(click.ParamType):
    """`MODEL=DIRECTORY,...`; a table in the file."""

    name = "models"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Path]:
        """See `click.ParamType`."""
        if isinstance(value, Mapping):
            given = {str(name): str(path) for name, path in value.items()}
        else:
            entries = [one.rpartition("=") for one in str(value).split(",") if one]
            for name, equals, path in entries:
                if not equals or not name or not path:
                    self.fail(f"expected MODEL=DIRECTORY,..., got: {value}", param, ctx)
            given = {name: path for name, _, path in entries}
        if len(given) > MODELS_MAX:
            self.fail(f"expected at most {MODELS_MAX} models, got: {len(given)}", param, ctx)
        for name in given:
            if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
                self.fail(f"expected names of models, got: {name[:80]!r}", param, ctx)
        return {name: Path(path) for name, path in given.items()}


tokens_option: Final = setting(
    "--tokens",
    "token_files",
    key="tokens",
    is_seldom_set=True,
    type=_ModelPaths(),
    in_file=dict[str, str],
    default="",
    metavar="MODEL=DIRECTORY,...",
    help="Where the files of a model are (tokenizer.json, tokenizer_config.json,"
    " chat_template.jinja), so that text is made tokens of here. Needs the extra `text`. Text of"
    " other models goes to /tokenize of an engine that serves them.",
)
"""Gives the command `token_files`."""
