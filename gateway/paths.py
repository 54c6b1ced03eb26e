"""Which paths the gateway passes on: those of inference. Pure.

Engines answer at the same address what administers them: `/shutdown`, `/sleep`,
`/reset_prefix_cache`, `/collective_rpc`, `/update_weights_from_disk`, `/v1/load_lora_adapter`. A
path that is not listed stays here.

Source: vLLM 0.33, `vllm/entrypoints`; SGLang 0.5, `http_server.py`; OpenAI's API.
"""

from collections.abc import Iterable
from typing import Final

from gateway.errors import GatewayError
from gateway.requests import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES
from schemas.errors import ConfigurationError

GATEWAY_PATHS_MAX: Final = 64  # that a setting adds
GATEWAY_PATH_CHARS_MAX: Final = 256  # of one of them

INFERENCE: Final = frozenset(
    {
        CHAT,
        COMPLETIONS,
        RESPONSES,
        "/v1/messages",
        "/v1/messages/count_tokens",
        EMBEDDINGS,
        "/v1/moderations",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v2/embed",
        "/score",
        "/v1/score",
        "/classify",
        "/v1/classify",
        "/pooling",
        "/tokenize",
        "/v1/tokenize",
        "/detokenize",
        "/v1/detokenize",
        "/generate",
        "/encode",
    }
)


class PassedPaths:
    """See the module.

    Args:
        added: by the setting `gateway.paths`.

    Raises:
        ConfigurationError: there are too many, or one is no path.
    """

    def __init__(self, added: Iterable[str] = ()) -> None:
        more = frozenset(added)
        if len(more) > GATEWAY_PATHS_MAX:
            text = f"Expected at most {GATEWAY_PATHS_MAX} paths in gateway.paths, got {len(more)}"
            raise ConfigurationError(text)
        for path in more:
            if not _is_path(path):
                raise ConfigurationError(
                    "Expected gateway.paths to be paths as /v1/images/generations, of at most"
                    f" {GATEWAY_PATH_CHARS_MAX} characters, got: {path[:80]}"
                )
        self._passed = INFERENCE | more

    def check(self, path: str) -> None:
        """Raises GatewayError where a path is not passed on."""
        if path not in self._passed:
            text = (
                f"Expected a path of inference, as {CHAT}, or one of gateway.paths,"
                f" got: {path[:80]}"
            )
            raise GatewayError(404, "path_not_passed_on", text)


def _is_path(text: str) -> bool:
    """Whether it is one that engines read as it stands."""
    return (
        text.startswith("/")
        and len(text) <= GATEWAY_PATH_CHARS_MAX
        and text.isascii()
        and text.isprintable()
        and not set(text) & set(" %?#\\")
        and not {"", ".", ".."} & set(text[1:].split("/"))
    )
