"""TokenSpeed's events, as SMG's servicer of it streams them: in the words of vLLM.

Source: `smg-grpc-servicer` 0.14.1, `tokenspeed/kv_events.py`. Its engine publishes as SGLang does,
one socket for each attention data-parallel rank.
"""

from typing import Final

from bridge.wire import vllm
from bridge.wire.batch import BatchDecoder
from schemas.arrays import ArrayPacker
from schemas.registration import TOKENSPEED, Registration

KIND: Final = TOKENSPEED


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of a TokenSpeed publisher's messages."""
    return vllm.open_source(registration, packer)
