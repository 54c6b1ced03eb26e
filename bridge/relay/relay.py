"""The relay as a loop: one thread, which owns every socket but ZAP's."""

import logging
from typing import Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from bridge.bounds import LINK_WATCH_S, RELAY_REPLAYS_MAX, SUBSCRIBER_ERROR_PAUSE_S
from bridge.relay.bridge_keys import BridgeKeys
from bridge.relay.publication import Publication
from bridge.relay.relay_settings import RelaySettings
from bridge.relay.replays import Replays
from bridge.relay.sockets import ZAP_DOMAIN, check_bindable
from bridge.sockets.connection import PublisherConnection
from bridge.sockets.curve import is_readable_by_others, read_key_pair
from bridge.sockets.memory_growth import MemoryGrowth
from bridge.sockets.probing import LinkProbes
from bridge.sockets.reader import MessageReader, PlainReader
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Part
from schemas.limits import LINK_GROWTH_BYTES, LINK_GROWTH_LOOK_S

RELAY_HELD_LOOK_S: Final = 0.005  # how often it is looked whether a bridge has room again

_SOCKETS_OF_ENGINE: Final = 14  # SUB and PUB with monitors, ROUTER; each twice while replaced
_SOCKETS_BESIDE: Final = 16  # ZAP's
_logger = logging.getLogger(__name__)


class Relay:
    """See the module.

    Args:
        settings: what it relays, and to whom.
        reader: of engines' messages; pyzmq's where none is given.

    Attributes:
        publications: one for each engine.
        replays: of those engines that replay.
        faults: unexpected errors.

    Raises:
        ConfigurationError: a file of keys cannot be used, or an address cannot be bound.
    """

    def __init__(
        self,
        settings: RelaySettings,
        conditions: Conditions,
        reader: MessageReader | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.faults = 0
        self.conditions = conditions
        pair = read_key_pair(settings.key)
        if is_readable_by_others(settings.key):
            _logger.warning("Others can read the relay's secret key: `chmod 600 %s`", settings.key)
        self.bridge_keys = BridgeKeys(settings.bridge_keys, monotonic=clock.monotonic)
        if not self.bridge_keys:
            _logger.warning("No bridge is listed in %s: none can connect", settings.bridge_keys)
        self.public_key = pair.public.decode()
        self._stopping = False
        self._look_at = 0.0
        self._growth = MemoryGrowth()
        self._probing: LinkProbes[PublisherConnection] = LinkProbes(clock.monotonic)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        wanted = len(settings.engines) * (_SOCKETS_OF_ENGINE + RELAY_REPLAYS_MAX) + _SOCKETS_BESIDE
        limit = int(self._context.get(zmq.SOCKET_LIMIT))
        self._context.set(zmq.MAX_SOCKETS, min(limit, wanted))
        self.publications: list[Publication] = []
        self.replays: list[Replays] = []
        # Before anything is bound: who connects while nobody answers for ZAP is let in by nobody.
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain=ZAP_DOMAIN, credentials_provider=self.bridge_keys
        )
        reader = PlainReader(clock.monotonic) if reader is None else reader
        try:
            for engine in settings.engines:
                check_bindable(self._context, engine.listen, pair)
                if engine.replay_endpoint:
                    self.replays.append(
                        Replays(self._context, pair, engine, monotonic=clock.monotonic)
                    )
                self.publications.append(
                    Publication(
                        self._context,
                        pair,
                        engine,
                        reader=reader,
                        probing=self._probing,
                        monotonic=clock.monotonic,
                    )
                )
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Has `run` return, within LINK_WATCH_S; any thread and signal handler may call it."""
        self._stopping = True

    def run(self) -> None:
        """Relays until `stop`; no error ends it."""
        is_more = False
        while not self._stopping:
            try:
                is_more = self._turn(wait=not is_more)
            except Exception:
                self.faults += 1
                _logger.exception("Unexpected error in the relay; going on")
                self._clock.sleep(SUBSCRIBER_ERROR_PAUSE_S)

    def _turn(self, *, wait: bool) -> bool:
        """Waits for something to do, LINK_GROWTH_LOOK_S at most, and does it. Cost O(engines)."""
        told = self._wait() if wait else frozenset()
        is_more = False
        for publication in self.publications:
            is_told = not told.isdisjoint(publication.descriptors())
            is_more = publication.turn(is_told=is_told) or is_more
        for replays in self.replays:
            is_more = replays.turn() or is_more
        if self._growth.take() > LINK_GROWTH_BYTES:
            for publication in self.publications:
                publication.look_at_memory(self._growth.latest_bytes)
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + LINK_WATCH_S
            self._look()
        return is_more

    def _wait(self) -> frozenset[int]:
        """The descriptors that have something to tell."""
        poller = zmq.Poller()
        wait_s = LINK_GROWTH_LOOK_S  # a message without an end shows in the memory alone
        for publication in self.publications:
            if publication.is_behind:
                wait_s = RELAY_HELD_LOOK_S
            for descriptor in publication.descriptors():
                poller.register(descriptor, zmq.POLLIN)
        for replays in self.replays:
            if replays.has_held:
                wait_s = RELAY_HELD_LOOK_S
            for socket in replays.sockets():
                poller.register(socket, zmq.POLLIN)
        return frozenset(
            key for key, _ in poller.poll(round(1000 * wait_s)) if isinstance(key, int)
        )

    def _look(self) -> None:
        for connection, answers in self._probing.ended():
            connection.note_answer(answers=answers)
        if self.bridge_keys.look():
            _logger.info(
                "A bridge is no longer listed: closing all links, which listed bridges make again"
            )
            for publication in self.publications:
                publication.drop_links()
            for replays in self.replays:
                replays.drop_links()
        if self.bridge_keys.problem:
            self.conditions.set(Part.KEYS, "unreadable", self.bridge_keys.problem)
        else:
            self.conditions.clear(Part.KEYS)
        away = [one.engine.endpoint for one in self.publications if one.is_away]
        if away:
            shown = ", ".join(away[:3]) + (", ..." if len(away) > 3 else "")
            message = f"{len(away)} of {len(self.publications)} engines are not there: {shown}"
            self.conditions.set(Part.ENGINES, "away", message)
        else:
            self.conditions.clear(Part.ENGINES)

    def close(self) -> None:
        """Ends all links, once `run` has returned; what was handed on goes out within
        RELAY_LINGER_S.
        """
        for publication in self.publications:
            publication.close()
        for replays in self.replays:
            replays.close()
        self._probing.close()
        self._growth.close()
        self._authenticator.stop()
        self._context.term()
