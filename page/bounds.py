"""Bounds that several modules of `page/` rely on."""

from typing import Final

TOP_PROMISES_S: Final = 60.0  # the hits that `reprise top` shows are of decisions since then
