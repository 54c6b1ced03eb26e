"""Numbers with a unit, times and positions, as flags of the command line have them."""

import math
from datetime import datetime
from typing import TYPE_CHECKING

import click

from schemas.limits import OFFSET_MAX, SETTING_SHOWN_CHARS_MAX

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


class Amounts(click.ParamType):
    """Finite numbers above 0, with commas between them; at most so many."""

    name = "amounts"

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max

    def convert(
        self, value: object, param: "Parameter | None", ctx: "Context | None"
    ) -> tuple[float, ...]:
        """See `click.ParamType`."""
        one = Amount(min=0, min_open=True)
        parts = [part.strip() for part in str(value).split(",")]
        if len(parts) > self._count_max:
            self.fail(f"expected at most {self._count_max} numbers, got {len(parts)}", param, ctx)
        return tuple(one.convert(part, param, ctx) for part in parts)


class Moment(click.ParamType):
    """A time: ISO 8601 with an offset, or Unix seconds."""

    name = "time"

    def convert(self, value: object, param: "Parameter | None", ctx: "Context | None") -> float:
        """See `click.ParamType`."""
        text = str(value)
        try:
            seconds = float(text)
        except ValueError:
            seconds = self._iso(text, param, ctx)
        if not math.isfinite(seconds) or seconds < 0:
            self.fail(f"expected a time since 1970, got: {text}", param, ctx)
        return seconds

    def _iso(self, text: str, param: "Parameter | None", ctx: "Context | None") -> float:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                "expected a time such as `2026-11-24T10:00:00Z` or Unix seconds,"
                f" got: {text[:SETTING_SHOWN_CHARS_MAX]}",
                param,
                ctx,
            )
        if moment.tzinfo is None:
            self.fail(f"expected a time with its offset, as `{text}Z`, got: {text}", param, ctx)
        return moment.timestamp()


class PositionsType(click.ParamType):
    """Positions of a log, as `Reprise-Position` spells them: `0:592`, or `0:12,1:40`."""

    name = "position"

    def convert(
        self, value: object, param: "Parameter | None", ctx: "Context | None"
    ) -> dict[int, int]:
        """See `click.ParamType`."""
        text = str(value)
        positions: dict[int, int] = {}
        for one in text.split(","):
            partition, colon, offset = one.partition(":")
            is_offset = offset == "-1" or _is_number(offset)  # -1: nothing of the partition
            if not colon or not _is_number(partition) or not is_offset:
                self.fail(
                    "expected a position such as `0:592`, as the header Reprise-Position has it,"
                    f" got: {text[:SETTING_SHOWN_CHARS_MAX]}",
                    param,
                    ctx,
                )
            if int(partition) in positions:
                self.fail(f"expected each partition once, got: {text}", param, ctx)
            positions[int(partition)] = int(offset)
        return positions


def _is_number(text: str) -> bool:
    return (
        text.isascii()
        and text.isdigit()
        and len(text) < len(str(OFFSET_MAX)) + 1
        and (int(text) <= OFFSET_MAX)
    )
