"""Where Reprise is and how long it is waited for; which engine a deployment is."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from reprise_client.client import ROUTE_TIMEOUT_S

URL: Final = "http://127.0.0.1:13333"
TIMEOUT_MAX_S: Final = 60.0
BLOCK_SIZE: Final = 16
"""vLLM's own default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the callback is told; times in seconds.

    Attributes:
        url: of Reprise.
        api_key: sent as a bearer token, if any.
        timeout_s: of a question to Reprise.
        refuse: whether a refusal (429) of Reprise is the user's answer; else LiteLLM chooses.
    """

    url: str = URL
    api_key: str = ""
    timeout_s: float = ROUTE_TIMEOUT_S
    refuse: bool = False

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """`REPRISE_URL`, `REPRISE_API_KEY`, `REPRISE_TIMEOUT_MS`, `REPRISE_ON_REFUSAL` (`pass` or
        `refuse`).

        Raises:
            ValueError: one is none of these, with its name and what was expected.
        """
        url = environ.get("REPRISE_URL", URL)
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"REPRISE_URL: expected http://HOST:PORT, got {url!r}")
        on_refusal = environ.get("REPRISE_ON_REFUSAL", "pass")
        if on_refusal not in ("pass", "refuse"):
            raise ValueError(f"REPRISE_ON_REFUSAL: expected pass or refuse, got {on_refusal!r}")
        return cls(
            url=url,
            api_key=environ.get("REPRISE_API_KEY", ""),
            timeout_s=_seconds(environ, "REPRISE_TIMEOUT_MS", ROUTE_TIMEOUT_S),
            refuse=on_refusal == "refuse",
        )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text) / 1000
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= TIMEOUT_MAX_S:
        raise ValueError(
            f"{name}: expected milliseconds up to {TIMEOUT_MAX_S:.0f}000, got {text!r}"
        )
    return seconds


class Scope(NamedTuple):
    """What engines must have in common to be compared: the fields of `/route` that name it."""

    model: str
    block_size: int
    tenant_id: str
    lora_name: str


class Engine(NamedTuple):
    """A deployment of LiteLLM that Reprise knows.

    Attributes:
        deployment_id: LiteLLM's name of it.
        instance_id: Reprise's, as it was registered there.
        likeness: all that LiteLLM may tell deployments apart by, but for which engine each is.
    """

    deployment_id: str
    instance_id: str
    scope: Scope
    likeness: str


OWN_PARAMS: Final = frozenset({"api_base", "base_url", "api_key", "weight"})
OWN_INFO: Final = frozenset({"id", "reprise"})
LIMITS: Final = ("rpm", "tpm", "max_budget")
"""Of a deployment: once it has used one up, LiteLLM takes it off the list behind our back."""


def engine_of(deployment: Mapping[str, Any]) -> Engine | None:
    """The engine that `model_info.reprise` of a deployment names; None where it names none."""
    params, info = deployment.get("litellm_params"), deployment.get("model_info")
    if not isinstance(params, Mapping) or not isinstance(info, Mapping):
        return None
    ours, deployment_id = info.get("reprise"), info.get("id")
    if not isinstance(ours, Mapping) or not isinstance(deployment_id, str):
        return None
    instance_id = ours.get("instance_id")
    served_model = str(params.get("model", "")).split("/", 1)[-1]
    block_size = ours.get("block_size", BLOCK_SIZE)
    if not isinstance(instance_id, str) or type(block_size) is not int:
        return None
    return Engine(
        deployment_id,
        instance_id,
        Scope(
            str(ours.get("model", served_model)),
            block_size,
            str(ours.get("tenant_id", "default")),
            str(ours.get("lora_name", "")),
        ),
        _likeness(params, info),
    )


def has_ranks(info: Mapping[str, Any]) -> bool:
    """Whether `model_info.reprise` of a deployment says that its engine has several ranks."""
    ours = info.get("reprise")
    ranks = ours.get("dp_ranks", 1) if isinstance(ours, Mapping) else 1
    return type(ranks) is int and ranks > 1


def has_limit(deployment: Mapping[str, Any]) -> bool:
    """Whether LiteLLM may refuse the deployment after it was chosen."""
    params = deployment.get("litellm_params")
    return isinstance(params, Mapping) and any(params.get(name) is not None for name in LIMITS)


def _likeness(params: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    return repr(
        (
            sorted((str(key), repr(params[key])) for key in params if key not in OWN_PARAMS),
            sorted((str(key), repr(info[key])) for key in info if key not in OWN_INFO),
        )
    )
