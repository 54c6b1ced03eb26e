"""Bounds that several modules of `doctor/` rely on."""

from typing import Final

DOCTOR_OUTCOMES_MIN: Final = 20  # reported requests of an instance, to judge its matches by
