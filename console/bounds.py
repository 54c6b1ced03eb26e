"""Bounds that several modules of `console/` rely on."""

from typing import Final

ANSWER_S: Final = 60.0  # that commands wait for a whole answer, as of `/explain`
