"""Numbers with a unit, as flags of the command line have them."""

import math
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click import Context, Parameter


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
