"""Packages that only some commands need, and that the service's image does without."""

import importlib
from types import ModuleType

from schemas.errors import ConfigurationError


class MissingExtraError(ConfigurationError):
    """Operator action: install the extra that is named."""


def need(module: str, extra: str = "analysis") -> ModuleType:
    """The module, imported now.

    Raises:
        MissingExtraError: it is not installed; says what to do.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"Expected {package}, which is not installed: `pip install {package}`, or the extra"
            f" `{extra}` of this package (`pip install -e '.[{extra}]'` in its clone)"
        ) from error
