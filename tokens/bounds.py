"""Bounds that several modules of `tokens/` rely on."""

from typing import Final

from schemas.limits import MIB

# Of one prompt; a larger one has no tokens here: reason="too_large".
PROMPT_CHARACTERS_MAX: Final = 8 * MIB  # of its text, before and after the template
MESSAGES_MAX: Final = 16_384  # of one chat, and tools of it
PROMPT_TOKENS_MAX: Final = 4 * MIB  # of one prompt, four bytes each

# What one rendering may take; above it the template has failed: reason="template".
RENDERING_STEPS_MAX: Final = 4_000_000  # rounds of loops and calls of macros
RENDERING_S_MAX: Final = 2.0  # on a thread of this room
LOOP_BYTES_MAX: Final = 65_536  # of a prompt, as JSON, whose text is made on the event loop
RENDERING_LOOP_S_MAX: Final = 0.02  # on the event loop; then it is made again on a thread

assert RENDERING_LOOP_S_MAX < RENDERING_S_MAX, "what is too slow for the loop has a thread's time"
