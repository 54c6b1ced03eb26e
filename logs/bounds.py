"""Bounds that several modules of `logs/` rely on."""

from typing import Final

WINDOW_LOG_S: Final = 0.05  # of what comes, written at once; what a kill may cost
