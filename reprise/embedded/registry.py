"""The publishers of the embedded service, as HTTP registers and unregisters them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from bridge.wire import KINDS
from reprise.embedded.intake import EmbeddedIntake
from routing.decisions.router import Router
from schemas.errors import StorageError
from schemas.registration import Registration, Unregistration

EMBEDDED_COMMAND_S: Final = 10.0  # a registration waits this long for the log: status="503"

logger = logging.getLogger(__name__)


class EmbeddedRegistry:
    """Implements `query_api.ports.PublisherRegistry`."""

    kinds = KINDS

    def __init__(self, intake: EmbeddedIntake, router: Router) -> None:
        self._intake = intake
        self._router = router

    async def register(self, registration: Registration, *, replace: bool = False) -> None:
        """See `PublisherRegistry`."""
        await self._within(self._intake.register(registration, replace=replace))

    async def unregister(self, target: Unregistration) -> list[Registration]:
        """See `PublisherRegistry`."""
        gone = await self._within(self._intake.unregister(target.matches, target.service_key))
        self._router.forget(gone)
        return gone

    async def _within(self, future: "Future[list[Registration]]") -> list[Registration]:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), EMBEDDED_COMMAND_S)
        except TimeoutError as error:
            text = f"The log was not written within {EMBEDDED_COMMAND_S:.0f} s"
            problem = self._intake.conditions.problem
            raise StorageError(f"{text}: {problem}" if problem else text) from error

    def forget_at_start(self, matches: Callable[[Registration], bool]) -> None:
        """Unregisters all that match, before any of them is followed again; before `start`."""

        def forget(done: "Future[list[Registration]]") -> None:
            if done.exception() is None:
                self._router.forget(done.result())

        self._intake.forget_at_start(matches).add_done_callback(forget)

    def register_configured(self, registrations: Sequence[Registration]) -> None:
        """Registers what a configuration file names, once recovery is done; bad ones are logged.
        What the file says of a publisher that is registered counts.
        """
        for registration in registrations:
            future = self._intake.register(registration, restate=True)
            future.add_done_callback(partial(_log_refusal, registration))


def _log_refusal(registration: Registration, done: "Future[list[Registration]]") -> None:
    error = done.exception()
    if error is not None:
        logger.warning(
            "Cannot register the configured publisher %s: %s. Correct the file, or POST /register",
            *(registration.service_key, error),
        )
