"""The seed of the prefix hash, and which index there is: settings of every role that has one."""

from collections.abc import Mapping
from typing import Final

from schemas.errors import ConfigurationError
from schemas.limits import SETTING_SHOWN_CHARS_MAX
from schemas.setting import Setting

DEFAULT_SEED: Final = 1337
"""Dynamo's seed, so that `/query_by_hash` takes its hashes as they are."""

_SEED_DIGITS_MAX: Final = len(str(2**64 - 1))


def seed_from(environment: Mapping[str, str]) -> int:
    """CONDUCTOR_SEED, or the default.

    Raises:
        ConfigurationError: it is not a decimal number, or too large for a seed.
    """
    text = environment.get("CONDUCTOR_SEED", "")
    if not text:
        return DEFAULT_SEED
    digits = text.lstrip("0") or "0"
    # Python refuses to convert numbers of some thousand digits.
    if text.isascii() and text.isdigit() and len(digits) <= _SEED_DIGITS_MAX:
        seed = int(digits)
        if seed < 2**64:
            return seed
    shown = (
        text
        if len(text) <= SETTING_SHOWN_CHARS_MAX
        else f"{text[:SETTING_SHOWN_CHARS_MAX]}... ({len(text)} characters)"
    )
    raise ConfigurationError(
        f"Expected CONDUCTOR_SEED to be a decimal number from 0 to 2**64-1, got: {shown}"
    )


SEED: Final = Setting(
    "seed",
    "Seed of the prefix hash, the same for every role; another one rebuilds the table.",
    variable="CONDUCTOR_SEED",
    read=lambda given: seed_from({"CONDUCTOR_SEED": str(given)}),
)
KERNEL: Final = Setting(
    "kernel",
    "The index to use.  [default: rust where it is built]",
    variable=None,
    choices=("rust", "reference"),
)
