"""The publishers of the embedded form: those that its log says are registered, and no others.

Registering a publisher; the order is the guarantee:

    Step 1. wait until all that is in the log is folded: only then is it known who is registered.
    Step 2. hold it and connect to it: from here on nothing that it sends is missed.
    Step 3. append that it is registered, and wait until that is in the log and folded.
    Step 4. ask its engine for what it has sent so far, and go on live.
    Step 5. sync the log.

An engine that publishes no events is registered by steps 1, 3 and 5 alone, and so is what says
other things of a publisher that is registered (`Registration.restates`), which goes on. What else a
registration replaces is followed until step 2, and again where that fails; step 3 has its end, too.

After a restart each registered publisher goes through steps 2 and 4, from its cursor in the table.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from bridge.engine_http.engine import check_http
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.follower import PublisherFollower
from bridge.publisher.ports import RecordSink
from bridge.sockets.endpoints import check_publisher_endpoint, check_replay_endpoint
from schemas.answer_states import Doubt
from schemas.clock import REAL_CLOCK
from schemas.errors import EndpointError, NotRegisteredError, RegistrationError
from schemas.identities import PublisherKey
from schemas.positions import PublisherState
from schemas.records import RegisteredRecord, UnregisteredRecord
from schemas.registration import (
    GRPC_SCHEME,
    STREAMED_KINDS,
    Registration,
    is_new,
    replaced_by,
    restated_by,
)

_logger = logging.getLogger(__name__)


def check_addresses(registration: Registration) -> None:
    """Accepts addresses that can be connected to; whether anything listens there is seen then.

    Raises:
        EndpointError: one of them can never be, or may not be.
    """
    if registration.has_events and not registration.has_url:
        check_publisher_endpoint(registration.endpoint)
    if registration.has_stream and registration.kind not in STREAMED_KINDS:
        raise EndpointError(
            f"Expected a `tcp://` or `ipc://` address of a publisher of type {registration.kind}:"
            f" only {', '.join(STREAMED_KINDS)} stream by gRPC"
        )
    if registration.is_self_registered:
        raise EndpointError(
            f"Expected the `{GRPC_SCHEME}` address of a server of type {registration.kind}, which"
            f" registers itself where it tells by other ways, got: `{registration.endpoint[:80]}`"
        )
    check_http(registration)
    check_replay_endpoint(registration.replay_endpoint)


class PublisherTable(Protocol):
    """What a fold of the log knows of publishers. Used on the pump's loop."""

    def registrations(self) -> Mapping[PublisherKey, Registration]:
        """Those that are registered."""
        ...

    def state(self, publisher: PublisherKey) -> PublisherState | None:
        """Where it stands; None before its first batch."""
        ...

    async def folded(self) -> None:
        """Returns once all that has been appended is folded.

        Raises:
            StorageError: the fold has ended.
        """
        ...


class Registrar:
    """See the module. Its methods run on the pump's loop, one at a time.

    Args:
        sync: makes durable what has been appended.
        on_unregistered: told of publishers that are about to be.
        clock: Unix seconds.
    """

    def __init__(
        self,
        *,
        follower: PublisherFollower,
        sink: RecordSink,
        table: PublisherTable,
        sync: Callable[[], Awaitable[None]],
        on_unregistered: Callable[[Sequence[PublisherKey]], None] = lambda publishers: None,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._clock = clock
        self._follower = follower
        self._sink = sink
        self._table = table
        self._sync = sync
        self._on_unregistered = on_unregistered

    async def follow_registered(
        self, leaves: Callable[[Registration], bool] = lambda registration: False
    ) -> None:
        """Follows all that are registered, from where the table stands, but for those that it
        leaves: these are about to be unregistered. Once, at the start.
        """
        for registration in list(self._table.registrations().values()):
            if registration.is_self_registered or not registration.has_events:
                continue
            if leaves(registration):
                continue
            await self._follow_again(registration)

    async def _follow_again(self, registration: Registration) -> None:
        key = registration.service_key
        try:
            await self._follower.follow(registration)
        except RegistrationError as error:
            _logger.warning(
                "Cannot follow the registered publisher %s: %s. Register it again", key, error
            )
        except Exception:
            _logger.exception("Unexpected error with %s; going on with the other publishers", key)
        if registration.publisher in self._follower.followed:
            self._begin(registration.publisher)

    def _begin(self, key: PublisherKey) -> None:
        publisher, state = self._follower.followed[key], self._table.state(key)
        if state is None:
            self._follower.begin(publisher, NO_ANCHOR)
            return
        said = state.confirmation
        process = None if said is None else said.process
        is_emptied = said is not None and said.reason == Doubt.ASLEEP
        anchor = Anchor.of(state)
        self._follower.begin(publisher, anchor, process=process, is_emptied=is_emptied)

    async def register(
        self, registration: Registration, *, replace: bool = False, restate: bool = False
    ) -> list[Registration]:
        """Follows a publisher; nothing changes where it is registered already.

        Args:
            replace: whether it takes the place of what `replaced_by` names, whose blocks are
                forgotten but where it only `restates` them. Where it cannot be followed, that
                stays as it was.
            restate: whether it takes the place of what it restates, and of nothing else.

        Returns:
            The registration, where it is new, or says other things.

        Raises:
            RegistrationError: it cannot be followed, or is in conflict with another.
            StorageError: the log cannot be synced, or the fold has ended.
        """
        await self._table.folded()  # Step 1.
        registered = dict(self._table.registrations())
        restated = restated_by(registration, registered) if replace or restate else []
        replaced = replaced_by(registration, registered) if replace else restated
        if restated and replaced == restated:
            self._follower.restate(registration)
            return await self._append(registration)
        for one in replaced:
            del registered[one.publisher]
        if not is_new(registration, registered):
            if registration.has_events:
                await self._follower.connect_again(registration)
            await self._sync()  # what was told an error may have been
            return []
        check_addresses(registration)
        await self._unfollow(replaced)
        if registration.has_events:
            try:
                await self._follow(registration)  # Step 2.
            except BaseException:
                for one in replaced:
                    await self._follow_again(one)
                raise
        self._append_unregistered(replaced, registration)
        return await self._append(registration, begins=registration.has_events)

    async def _append(
        self, registration: Registration, *, begins: bool = False
    ) -> list[Registration]:
        """Steps 3 to 5, of a publisher that is followed: it will be in the log, whatever happens to
        the rest.
        """
        self._sink.append([RegisteredRecord.of(registration, self._clock())])  # Step 3.
        await self._sink.ready()
        await self._table.folded()
        if begins:
            self._begin(registration.publisher)  # Step 4.
        await self._sync()  # Step 5.
        return [registration]

    async def _follow(self, registration: Registration) -> None:
        try:
            await self._follower.follow(registration)
        except RegistrationError:
            await self._unfollow([registration])
            raise

    async def unregister(
        self, matches: Callable[[Registration], bool], service_key: str
    ) -> list[Registration]:
        """Forgets all publishers that match.

        Returns:
            Their registrations.

        Raises:
            NotRegisteredError: none does; it has `service_key`.
            StorageError: the log cannot be synced, or the fold has ended.
        """
        await self._table.folded()
        registered = self._table.registrations().values()
        gone = [registration for registration in registered if matches(registration)]
        if not gone:
            await self._sync()
            raise NotRegisteredError(service_key)
        await self._unfollow(gone)
        self._append_unregistered(gone)
        await self._sink.ready()
        await self._sync()
        await self._table.folded()
        return gone

    async def _unfollow(self, gone: Iterable[Registration]) -> None:
        for registration in gone:
            publisher = self._follower.followed.get(registration.publisher)
            if publisher is not None:
                await self._follower.unfollow(publisher)

    def _append_unregistered(
        self, gone: Sequence[Registration], by: Registration | None = None
    ) -> None:
        if not gone:
            return
        self._on_unregistered([registration.publisher for registration in gone])
        now = self._clock()
        self._sink.append(
            UnregisteredRecord.of(
                one.publisher, now, continues=by is not None and by.continues(one)
            )
            for one in gone
        )
