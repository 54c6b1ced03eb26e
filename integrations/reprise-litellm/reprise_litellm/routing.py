"""The callback: narrows LiteLLM's deployments to the engine that Reprise names, and tells Reprise
what became of the request.

LiteLLM calls `async_filter_deployments` with the deployments that are healthy, in the asynchronous
calls of its Router and in its proxy. What is returned here, its own strategy chooses from. (Its
`router_settings.plugins` cannot do this: they see models, not deployments, and replicas of a model
are alike to them.)
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import httpx
from litellm.exceptions import RateLimitError
from litellm.integrations.custom_logger import CustomLogger
from reprise_client.client import Client, Decision, Refusal, Report, Unanswered
from reprise_client.prompt import prompt_of

from reprise_litellm.attempts import Attempt, Attempts
from reprise_litellm.settings import Engine, Settings, engine_of, has_limit, has_ranks

logger = logging.getLogger("reprise_litellm")

ERROR_CHARACTERS_MAX: Final = 200
"""Of why a request failed, as Reprise is told: the kind of error, never a prompt."""

RANK_HEADER: Final = "X-data-parallel-rank"

Deployment = dict[str, Any]


class RepriseCallback(CustomLogger):
    """See the module. One for a process; `report.counts` says what it did."""

    def __init__(self, settings: Settings, report: Report | None = None) -> None:
        """Nothing is connected before the first request."""
        super().__init__()
        self.report = report or Report(logger)
        self._settings = settings
        self._client = Client(
            settings.url, self.report, api_key=settings.api_key, timeout_s=settings.timeout_s
        )
        self._attempts = Attempts()

    # Which deployment

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Deployment],
        messages: list[Any] | None,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[Deployment]:
        """All deployments but those that the chosen one stands for; all, where there is none.

        Raises:
            litellm.RateLimitError: Reprise refuses, and the settings say that this counts.
        """
        try:
            return await self._narrowed(model, healthy_deployments, request_kwargs or {})
        except RateLimitError:
            raise
        except Exception:  # a fault of ours is no reason to fail a user's request
            logger.debug("Expected a decision, got a fault", exc_info=True)
            self.report.fail("fault")
            return healthy_deployments

    async def _narrowed(
        self, model: str, deployments: list[Deployment], request: Mapping[str, Any]
    ) -> list[Deployment]:
        engines = self._candidates(deployments, request)
        if not engines:
            return deployments
        if any(map(has_limit, deployments)):
            self.report.count("left_limits")
            return deployments
        prompt = prompt_of(request)
        # Anthropic's and OpenAI's newer calls, with templates of their own.
        if prompt is None or "litellm_metadata" in request:
            self.report.count("left_no_text")
            return deployments
        answer = await self._answer(engines, prompt, request)
        if isinstance(answer, Refusal):
            self._refuse(model, answer)
            return deployments
        chosen = None
        if answer is not None:
            chosen = next((one for one in engines if one.instance_id == answer.instance_id), None)
        if answer is None or chosen is None:
            if answer is not None:
                self._client.tell({"decision_id": answer.decision_id, "event": "cancelled"})
                self.report.fail("unknown_instance")
            return deployments
        self.report.count("routed")
        self._attempts.decided(
            str(request.get("litellm_trace_id", "")),
            chosen.deployment_id,
            Attempt(answer.decision_id, answer.instance_id, answer.dp_rank),
        )
        return [one for one in deployments if _stays(one, chosen)]

    def _candidates(
        self, deployments: Sequence[Deployment], request: Mapping[str, Any]
    ) -> list[Engine]:
        """Engines of the first one's scope; not those that have failed this request before."""
        found = [one for one in map(engine_of, deployments) if one is not None]
        engines = [one for one in found if one.scope == found[0].scope]
        failed = self._attempts.failed_deployments(str(request.get("litellm_trace_id", "")))
        for name in ("_excluded_deployment_ids", "_retry_skipped_deployment_ids"):
            failed = failed.union(request.get(name) or ())
        return [one for one in engines if one.deployment_id not in failed] or engines

    async def _answer(
        self, engines: Sequence[Engine], prompt: Mapping[str, Any], request: Mapping[str, Any]
    ) -> Decision | Refusal | None:
        salt = request.get("cache_salt")
        fields = {
            **{name: value for name, value in engines[0].scope._asdict().items() if value != ""},
            **prompt,
            "candidates": [
                {"instance_id": name} for name in dict.fromkeys(one.instance_id for one in engines)
            ],
            **({"cache_salt": salt} if isinstance(salt, str) else {}),
        }
        try:
            return await self._client.route(fields)
        except Unanswered as error:
            self.report.fail(f"route_{error.reason}")
            return None

    def _refuse(self, model: str, refusal: Refusal) -> None:
        self.report.count("refused")
        if not self._settings.refuse:
            return
        raise RateLimitError(
            f"Reprise refuses the request ({refusal.reason}): try again in"
            f" {refusal.retry_after_s} s",
            llm_provider="reprise",
            model=model,
            response=httpx.Response(
                429,
                headers={"Retry-After": str(refusal.retry_after_s)},
                request=httpx.Request("POST", self._settings.url),
            ),
        )

    # What became of it

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any] | None:
        """The request goes out: from here on its call id names it. To an engine of several ranks it
        goes with the chosen one in vLLM's header.
        """
        info, call_id = kwargs.get("model_info"), kwargs.get("litellm_call_id")
        deployment_id = info.get("id") if isinstance(info, Mapping) else None
        trace_id = str(kwargs.get("litellm_trace_id", ""))
        attempt = self._attempts.sent(trace_id, deployment_id, call_id)
        logging_object = kwargs.get("litellm_logging_obj")
        if attempt is not None and logging_object is not None:
            self._watch(logging_object, str(call_id), attempt)
        if attempt is None or not isinstance(info, Mapping) or not has_ranks(info):
            return None
        headers = {**(kwargs.get("extra_headers") or {}), RANK_HEADER: str(attempt.dp_rank)}
        return {**kwargs, "extra_headers": headers}

    def _watch(self, logging_object: Any, call_id: str, attempt: Attempt) -> None:
        """No hook is called at the first token, nor when a user hangs up.

        LiteLLM notes the former with this call, on an object that lives as long as the request: if
        that object goes while nothing was heard of the request, nobody waits for it any more.
        """
        noted = getattr(type(logging_object), "update_completion_start_time", None)
        itself = weakref.ref(logging_object)

        def first_token(completion_start_time: datetime) -> None:
            owner = itself()
            if noted is not None and owner is not None:
                noted(owner, completion_start_time)
            self._first_token(call_id, attempt)

        if noted is not None:
            logging_object.update_completion_start_time = first_token
        loop = asyncio.get_running_loop()
        gone = weakref.finalize(logging_object, _soon, loop, self._ended, call_id, "cancelled")
        gone.atexit = False

    def _first_token(self, call_id: str, attempt: Attempt) -> None:
        if self._attempts.is_open(call_id):
            self._client.tell({**attempt.outcome, "event": "first_token", **attempt.ttft()})

    def _ended(self, call_id: str, event: str, *, has_failed: bool = False, **fields: Any) -> None:
        attempt = self._attempts.ended(call_id, failed=has_failed)
        if attempt is not None:
            self._client.tell({**attempt.outcome, "event": event, **fields})

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Tells how many tokens were cached, where the engine says it. An answer of LiteLLM's own
        cache was asked of no engine, and says nothing of one.
        """
        if kwargs.get("cache_hit"):
            self._ended(str(kwargs.get("litellm_call_id")), "cancelled")
            return
        usage = getattr(response_obj, "usage", None)
        self._ended(str(kwargs.get("litellm_call_id")), "completed", **_tokens_of(usage))

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Exception,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """An attempt has failed; LiteLLM may try again."""
        self._failed(request_data, exception)

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """The same of a stream that breaks."""
        self._failed(kwargs, kwargs.get("exception"))

    def _failed(self, kwargs: Mapping[str, Any], error: object) -> None:
        status = getattr(error, "status_code", "")
        text = f"{type(error).__name__} {status}".strip()[:ERROR_CHARACTERS_MAX]
        event = "cancelled" if _is_refusal(status) else "failed"
        call_id = str(kwargs.get("litellm_call_id"))
        self._ended(call_id, event, has_failed=True, error=text)


def _is_refusal(status: object) -> bool:
    """Whether the engine works, and takes this request not, or not now: no reason to leave it out.
    408 is LiteLLM's own for an engine that did not answer in time.
    """
    return isinstance(status, int) and 400 <= status < 500 and status != 408


def _stays(deployment: Deployment, chosen: Engine) -> bool:
    """Whether LiteLLM may still choose it.

    What it asks after us (tags, context windows, order) may tell deployments apart, and none left
    is an error. So the chosen one stands for those that are like it in all else, and only for them.
    """
    engine = engine_of(deployment)
    if engine is None or engine.likeness != chosen.likeness or engine.scope != chosen.scope:
        return True
    return engine.deployment_id == chosen.deployment_id


def _soon(loop: asyncio.AbstractEventLoop, act: Callable[..., None], *args: object) -> None:
    """Outside the garbage collector, which may have interrupted anything."""
    with suppress(RuntimeError):  # the loop is closed, and with it all that was under way
        loop.call_soon_threadsafe(act, *args)


def _tokens_of(usage: Any) -> dict[str, int]:
    details = getattr(usage, "prompt_tokens_details", None)
    found = {
        "prompt_tokens": getattr(usage, "prompt_tokens", None),
        "output_tokens": getattr(usage, "completion_tokens", None),
        "cached_tokens": getattr(details, "cached_tokens", None),
    }
    return {name: value for name, value in found.items() if type(value) is int and value >= 0}
