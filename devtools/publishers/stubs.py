"""What the publishing files import of the rest of their engine, left out.

Nothing of it takes part in encoding or sending: loggers, types, a configuration that is only kept,
and addresses of hosts, which are asked for where the endpoint has no port.
"""

import logging
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Final, NoReturn


def _left_out(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError("this part of the engine is not here")


_MODULES: Final[Mapping[str, Mapping[str, object]]] = {
    "vllm": {},
    "vllm.config": {"KVEventsConfig": SimpleNamespace},
    "vllm.config.kv_events": {"KVEventsConfig": SimpleNamespace},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.utils": {},
    "vllm.utils.network_utils": dict.fromkeys(
        ("get_ip", "get_tcp_uri", "is_valid_ipv6_address", "split_zmq_path"), _left_out
    ),
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": bytes | int},
    "sglang": {},
    "sglang.srt": {},
    "sglang.srt.distributed": {},
    "sglang.srt.distributed.parallel_state_wrapper": {"ParallelState": object},
    "sglang.srt.runtime_context": {"get_parallel": _left_out},
    "sglang.srt.utils": {},
    "sglang.srt.utils.network": {"NetworkAddress": SimpleNamespace},
}


def install() -> None:
    """Puts them where Python looks for modules."""
    for name, attributes in _MODULES.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        sys.modules[name] = module
