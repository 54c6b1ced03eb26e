"""Numbers with a unit, as flags of the command line have them."""

import math
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click import Context, Parameter


GIB_MAX: Final = 2.0**33
"""A file system has no more bytes than 64 bits can count."""

HOURS_MAX: Final = 24.0 * 365 * 10_000


class Amount(click.FloatRange):
    """A finite number from `min` to `max`. Click lets `nan` and `inf` through where a bound is
    open, and `nan` always, since no comparison with it holds.
    """

    name = "amount"

    def convert(self, value: object, param: "Parameter | None", ctx: "Context | None") -> float:
        """See `click.ParamType`."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got: {value}", param, ctx)
        return number
