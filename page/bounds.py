"""Bounds that several modules of `page/` rely on."""

from typing import Final

TOP_PROMISES_S: Final = 60.0  # the hits of an instance are those of decisions since then
