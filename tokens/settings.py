"""The setting of this room: which models' files are where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from schemas.limits import NAME_BYTES_MAX
from schemas.setting import part, setting

MODELS_MAX: Final = 256  # whose files are read


def _read_files(value: Any) -> dict[str, Path]:
    """Of `MODEL=DIRECTORY,...`, or a table. Raises ValueError where it is neither."""
    if isinstance(value, Mapping):
        given = {str(name): str(path) for name, path in value.items()}
    else:
        entries = [one.rpartition("=") for one in str(value).split(",") if one]
        for name, equals, path in entries:
            if not equals or not name or not path:
                raise ValueError(f"expected MODEL=DIRECTORY,..., got: {value}")
        given = {name: path for name, _, path in entries}
    if len(given) > MODELS_MAX:
        raise ValueError(f"expected at most {MODELS_MAX} models, got: {len(given)}")
    for name in given:
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"expected names of models, got: {name[:80]!r}")
    return {name: Path(path) for name, path in given.items()}


@part
class TokensSettings:
    """What the table `tokens` says.

    Attributes:
        files: directories of models, by name; text is made tokens of by their files.
    """

    files: Mapping[str, Path] = setting(
        "tokens",
        "Where the files of a model are (tokenizer.json, tokenizer_config.json,"
        " chat_template.jinja), so that text is made tokens of here. Needs the extra `text`."
        " Text of other models goes to /tokenize of an engine that serves them.",
        variable=None,
        metavar="MODEL=DIRECTORY,...",
        given=dict[str, str],
        read=_read_files,
        default_factory=dict,
    )
