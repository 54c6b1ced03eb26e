"""Bodies of the two requests of a pair: one engine computes the prompt, another one decodes. Pure.

    kind     how                         label of the one that computes     default
    vLLM     first the one, then the     kv_connector: nixl or mooncake     nixl
             other, with what the first  kv_engine_id: of mooncake alone
             said in its answer          bootstrap_port: likewise           8998
    SGLang   both at once, with a room   bootstrap_port                     8998
             that they meet in

Of several ranks behind one address the cache is one rank's: Mooncake calls its engine by a name
with the rank in it, and SGLang's decoding one is told the rank. Where Mooncake's engine has no name
the cache stays where it is, and the second engine computes the prompt, too.

Source: vLLM 0.32 (`kv_connector/v1/nixl`, `kv_connector/v1/mooncake`, `v1/engine/core.py`), as its
own router and SMG of August 2026 send it; SGLang 0.5 (`serving_base.py`), as SMG sends it.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bridge.engine_http.address import bracketed, read_base_url
from gateway.fleet import EngineTarget
from gateway.requests import with_fields
from schemas.registration import SGLANG

CONNECTOR_LABEL: Final = "kv_connector"
ENGINE_ID_LABEL: Final = "kv_engine_id"
BOOTSTRAP_LABEL: Final = "bootstrap_port"
MOONCAKE: Final = "mooncake"

_BOOTSTRAP_PORT: Final = 8998
_ROOM_BITS: Final = 63

_ALONE: Final = ("stream", "stream_options", "min_tokens", "n", "best_of")
"""Fields that say how the answer is to be, which the first request has none of."""

PARAMETERS: Final = "kv_transfer_params"


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_answer: Final = msgspec.json.Decoder(_Answer)


def are_at_once(prefill: EngineTarget) -> bool:
    """Whether both requests are sent at once."""
    return prefill.kind == SGLANG


class Handover:
    """What the two requests of one pair say of each other.

    Args:
        prefill: the engine that computes the prompt.
    """

    def __init__(self, prefill: EngineTarget) -> None:
        self._prefill = prefill
        self._name = f"reprise-{secrets.token_hex(16)}"

    def first(self, fields: Mapping[str, Any]) -> bytes:
        """The body of the first request to vLLM: one token, whose cache is kept for the other."""
        said: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
        if self._is_by_mooncake:
            # Without a name nobody comes for its blocks, which it would keep for eight minutes.
            said = said | {"transfer_id": self._name} if self._engine_id else {}
        else:
            names = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
            said |= dict.fromkeys(names)
        kept = {name: value for name, value in fields.items() if name not in _ALONE}
        kept |= {"max_tokens": 1, "stream": False, **({PARAMETERS: said} if said else {})}
        if "max_completion_tokens" in kept:
            kept["max_completion_tokens"] = 1
        return msgspec.json.encode(kept)

    def second(self, body: bytes, answer: bytes) -> bytes:
        """The body of the second request to vLLM: as it came, with where the cache is. Where the
        first one did not say it, the second one computes the prompt itself.

        Args:
            answer: to the first request.
        """
        if self._is_by_mooncake:
            if not self._engine_id:
                return body
            said = msgspec.json.encode(
                {
                    "do_remote_decode": False,
                    "do_remote_prefill": True,
                    "transfer_id": self._name,
                    "remote_engine_id": self._engine_id,
                    "remote_bootstrap_addr": f"http://{bracketed(self._host)}:{self._port}",
                }
            )
        else:
            try:
                found = _answer.decode(answer).kv_transfer_params
            except msgspec.MsgspecError:
                return body
            if found is msgspec.UNSET or bytes(found) == b"null":
                return body
            said = bytes(found)
        return with_fields(body, b'"%s":%s' % (PARAMETERS.encode(), said))

    def both(self, body: bytes) -> tuple[bytes, bytes]:
        """The bodies of both requests to SGLang: as it came, with where they meet."""
        room = secrets.randbits(_ROOM_BITS)
        said = {
            "bootstrap_host": self._host,
            "bootstrap_port": self._port,
            "bootstrap_room": room,
        }
        first = with_fields(body, msgspec.json.encode(said)[1:-1])
        if not self._prefill.has_ranks:
            return first, first
        return first, with_fields(first, b'"disagg_prefill_dp_rank":%d' % self._prefill.key[1])

    @property
    def _engine_id(self) -> str:
        """What Mooncake calls the rank that computes; "" where nobody has said it."""
        name = self._prefill.labels.get(ENGINE_ID_LABEL, "")
        return f"{name}_dp{self._prefill.key[1]}" if name and self._prefill.has_ranks else name

    @property
    def _is_by_mooncake(self) -> bool:
        return self._prefill.labels.get(CONNECTOR_LABEL, "").lower() == MOONCAKE

    @property
    def _host(self) -> str:
        return read_base_url(self._prefill.base_url).host

    @property
    def _port(self) -> int:
        text = self._prefill.labels.get(BOOTSTRAP_LABEL, "")
        is_port = text.isascii() and text.isdigit() and len(text) <= 5
        return int(text) if is_port else _BOOTSTRAP_PORT
