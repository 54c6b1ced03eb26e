"""Finds out where engines publish that were registered by a base URL, and connects to them.

Each link is connected to once. When it has ended, the engine is asked anew: it may be another
process by then, which publishes elsewhere (vLLM with `tcp://*:0`), and its former port may be
another engine's, whose events would be taken for its own. So an answer may be out of date before
its link comes up: the engine is asked once more over the link (`bridge.engine_http.inquiries`),
which is left where it names another place (`leave`). Asyncio; one loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from bridge.engine_http.answers import source_of
from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.inquiries import EngineSource, LinkStates
from bridge.supervision import cancel
from schemas.clock import REAL_CLOCK
from schemas.errors import OpenFilesError, RegistrationError
from schemas.registration import Registration

FIND_AGAIN_S: Final = 3.0  # how often an engine without a link is asked where it publishes
FIND_REFUSED_S: Final = 30.0  # where it said what cannot be used: it is to be registered otherwise

_logger = logging.getLogger(__name__)


class UnplacedPublisher(Protocol):
    """What is to be found out of a publisher; see `bridge.publisher.publisher.Publisher`."""

    registration: Registration
    endpoint: str  # that was found last; "" before

    def locate(self, endpoint: str, replay_endpoint: str) -> None:
        """Its engine has said where it publishes, and replays."""
        ...

    def miss_endpoint(self) -> None:
        """It does not say."""
        ...


class _SoughtEngine:
    """One publisher, and when its engine is asked next if it has no link by then."""

    __slots__ = ("asking", "at", "followed", "leaves", "refusal")

    def __init__(self, followed: UnplacedPublisher) -> None:
        self.followed = followed
        self.at = 0.0
        self.asking: asyncio.Task[None] | None = None
        self.refusal = ""  # that was logged last
        self.leaves = False  # its link is another engine's


class EndpointDiscovery:
    """See the module.

    Args:
        connect: to a publisher, whose registration says where it publishes now, and whether a link
            that is up is left for it; see `bridge.publisher.ports.Receiver.follow_once`.
        on_fault: an unexpected error of ours; the engine is asked again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: EngineSource,
        links: LinkStates,
        *,
        connect: Callable[[Registration, bool], Awaitable[None]],
        on_fault: Callable[[], None],
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._clock = clock
        self._source = source
        self._links = links
        self._connect = connect
        self._on_fault = on_fault
        self._sought: dict[UnplacedPublisher, _SoughtEngine] = {}

    def add(self, followed: UnplacedPublisher) -> None:
        """Its engine is asked from the next `watch` on."""
        self._sought[followed] = _SoughtEngine(followed)

    def leave(self, followed: UnplacedPublisher) -> None:
        """The link that is up is another engine's: its own is asked where it is."""
        sought = self._sought.get(followed)
        if sought is not None and not sought.leaves:
            _logger.warning(
                "%s does not publish at %s any more: leaving the link to that",
                _name(followed.registration),
                followed.endpoint,
            )
            sought.leaves, sought.at = True, 0.0

    def remove(self, followed: UnplacedPublisher) -> None:
        """Asks for it no more, if it did."""
        sought = self._sought.pop(followed, None)
        if sought is not None and sought.asking is not None:
            sought.asking.cancel()

    async def close(self) -> None:
        """Ends."""
        asking = [one.asking for one in self._sought.values() if one.asking is not None]
        self._sought.clear()
        await cancel(*asking)

    def watch(self, now: float) -> None:
        """Asks those engines of which there is no link; `now` in monotonic seconds. Cost O(sought),
        0.2 us each.
        """
        for followed, sought in self._sought.items():
            if sought.asking is not None or now < sought.at:
                continue
            if sought.leaves or not self._links.connected(followed.registration.publisher):
                sought.asking = asyncio.create_task(self._ask(sought))

    async def _ask(self, sought: _SoughtEngine) -> None:
        pause_s = FIND_AGAIN_S
        try:
            await self._find(sought)
        except (NoAnswerError, OpenFilesError) as error:
            _logger.debug(
                "Cannot ask where %s publishes: %s", _name(sought.followed.registration), error
            )
        except RegistrationError as error:
            pause_s = FIND_REFUSED_S
            self._refuse(sought, error)
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error while asking where %s publishes; asking again in %g s",
                _name(sought.followed.registration),
                pause_s,
            )
        finally:
            sought.asking = None
            sought.at = self._clock() + pause_s

    async def _find(self, sought: _SoughtEngine) -> None:
        followed = sought.followed
        registration = followed.registration
        source = source_of(await self._source.sources(registration), registration)
        replay_endpoint = registration.replay_endpoint or source.replay_endpoint
        found = msgspec.structs.replace(
            registration, endpoint=source.endpoint, replay_endpoint=replay_endpoint
        )
        is_new = source.endpoint != followed.endpoint
        if is_new:
            _logger.info(
                "%s publishes at %s%s, as %s says",
                _name(registration),
                source.endpoint,
                f" and replays at {replay_endpoint}" if replay_endpoint else "",
                registration.endpoint,
            )
        leaves = sought.leaves and is_new
        sought.refusal, sought.leaves = "", False
        followed.locate(source.endpoint, replay_endpoint)
        await self._connect(found, leaves)

    def _refuse(self, sought: _SoughtEngine, error: RegistrationError) -> None:
        sought.followed.miss_endpoint()
        if str(error) != sought.refusal:
            sought.refusal = str(error)
            _logger.warning(
                "Not connected to %s: %s. Its engine is asked again every %g s",
                _name(sought.followed.registration),
                error,
                FIND_REFUSED_S,
            )


def _name(registration: Registration) -> str:
    return f"{registration.service_key} ({registration.model_name})"
