"""Acts on advice: has LMCache's workers copy and pin what is advised, where that is switched on.

Thread `act`, with a loop of its own: each `period_s` it asks the log of commands what was done by
advice, looks at the advice of that moment, and gives the commands that `routing.advice.acting` has
nothing against, by the way of `POST /commands`. No request waits for it: it shares with them only
what `GET /advice` reads, and `WantedTokens`.

It keeps nothing that the log does not have, but for what the log may have without our knowing. So
after `kill -9` nothing is done twice within the horizon: a command is in the log before a worker is
asked, and is ended with the next start.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from lmcache_adapter.acting.commands import act_of
from lmcache_adapter.acting.workers import Model, executor_of, model_of, workers_of
from lmcache_adapter.bounds import COMMANDS_KEPT_MAX
from lmcache_adapter.commands.book import CommandView
from lmcache_adapter.http.command_requests import CommandRequest, command_of
from lmcache_adapter.ports import WorkerCommands
from logs.loop_thread import LoopThread
from query_api.http.errors import RequestError
from query_api.ports import View
from routing.advice.acting import Act, ActRules, PastActs, SuppressionReason
from routing.advice.advice import LOCATION, Advice, AdvisedAction
from routing.advice.advice_context import NOTHING_DONE, AdviceContext, advised
from routing.decisions.router import Router
from routing.decisions.wanted_tokens import PrefixKey
from schemas.clock import REAL_CLOCK
from schemas.command_records import (
    BY_ADVICE,
    BlockPlace,
    CommandRecord,
)
from schemas.command_records import CommandAction as Command
from schemas.errors import StorageError
from schemas.limits import ACT_PERIOD_S, ACT_REMEMBERED_S
from schemas.registration import Registration

logger = logging.getLogger(__name__)


class Actor:
    """See the module.

    Attributes:
        rounds: how often it has looked.
        acted: commands that it gave, by action.
        failed: of these, those that were not executed by all workers, or brought nothing, by
            result; `unknown` where that cannot be told.
        suppressed: what was advised and not done, by `SuppressionReason`; each time it is looked
        at. unread: rounds in which nothing was done, since the log of commands could not be read.
        faults: unexpected errors.
    """

    def __init__(
        self,
        view: View,
        router: Router,
        commands: WorkerCommands,
        *,
        period_s: float = ACT_PERIOD_S,
        rules: ActRules = ActRules(),  # noqa: B008 -- immutable
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        """Args:
        router: whose log has the hot prefixes, and whose prompts have the tokens.
        commands: has workers execute commands.
        period_s: between two looks.
        rules: how much is done at most.
        clock: Unix seconds.
        """
        self.rounds = self.unread = self.faults = 0
        self.acted: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.suppressed: Counter[str] = Counter()
        self._view = view
        self._router = router
        self._commands = commands
        self._period_s = period_s
        self._rules = rules
        self._clock = clock
        self._known: dict[str, Act] = {}
        self._copied: dict[int, frozenset[str]] = {}
        self._held_back: Mapping[PrefixKey, SuppressionReason] = {}
        self._targets: Mapping[Model, frozenset[str]] | None = None  # not looked yet
        self._is_read = True
        self._waiting: set[asyncio.Task[None]] = set()
        self._thread = LoopThread("act", unended="The thread that acts on advice did not end")

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start(self._work())

    def stop(self) -> None:
        """Ends it; what workers were asked goes on. Within a bound."""
        self._thread.stop()

    # From any thread

    def acts(self) -> list[Act]:
        """See `AdviceActor`."""
        return sorted(dict(self._known).values(), key=lambda one: (-one.at, one.command_id))

    def done(self) -> AdviceContext:
        """See `AdviceActor`."""
        targets = self._targets
        if targets is None:
            return NOTHING_DONE
        return AdviceContext(
            self._copied, lambda scope, name: name in targets.get(model_of(scope), ())
        )

    def held_back(self) -> Mapping[PrefixKey, SuppressionReason]:
        """See `AdviceActor`."""
        return self._held_back

    @property
    def under_way(self) -> int:
        """Commands by advice that have not ended, of all services."""
        return PastActs(list(dict(self._known).values()), self._clock(), self._rules).under_way

    # On its thread

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self.look()
            except Exception:
                self.faults += 1
                logger.exception("Unexpected error while acting on advice; going on")

    async def look(self) -> None:
        """Looks once, and does what is to be done; the commands go on behind it."""
        self.rounds += 1
        now = self._clock()
        if not self._view.ready:
            self.unread += 1
            return
        try:
            found = await self._commands.latest(
                COMMANDS_KEPT_MAX, origin=BY_ADVICE, since=now - ACT_REMEMBERED_S
            )
        except (RequestError, StorageError) as error:
            self.unread += 1
            level = logging.WARNING if self._is_read else logging.DEBUG
            logger.log(
                level, "Cannot read what advice is about: %s. Nothing is done meanwhile", error
            )
            self._is_read = False
            return
        self._is_read = True
        past = self._learned(found, now)
        workers = workers_of(self._view.services())
        self._copied = past.copied()
        self._targets = {
            model: frozenset(one for one in names if not past.is_backing_off(one))
            for model, names in workers.takes.items()
        }
        advice = advised(self._view, self._router, self.done())
        to_do = [one for one in advice if one.action is not AdvisedAction.NONE and one.targets]
        held_back: dict[PrefixKey, SuppressionReason] = {}
        possible: list[tuple[Advice, str]] = []
        for one in to_do:
            source = executor_of(one, past, workers)
            if isinstance(source, SuppressionReason):
                held_back[_key_of(one)] = source
            else:
                possible.append((one, source))
        self._router.wanted.want({_key_of(one): one.prefix.blocks for one, _ in possible})
        for one, source in possible:
            reason = await self._do(one, source, past, workers.registrations, now)
            if reason is not None:
                held_back[_key_of(one)] = reason
        self.suppressed.update(held_back.values())
        self._held_back = held_back

    def _learned(self, found: list[CommandView], now: float) -> PastActs:
        """What was done, by the log and by what the log may have yet."""
        self._known = {
            name: act for name, act in self._known.items() if now - act.at <= ACT_REMEMBERED_S
        }
        for view in found:
            act = act_of(view)
            if act is not None:
                self._known[act.command_id] = act
        return PastActs(list(self._known.values()), now, self._rules)

    async def _do(
        self,
        advice: Advice,
        source: str,
        past: PastActs,
        registrations: list[Registration],
        now: float,
    ) -> SuppressionReason | None:
        """Gives the command of an advice; or says why it does not."""
        reason = past.why_not(advice.prefix.prefix, advice.targets[0].instance_id)
        if reason is not None:
            return reason
        tokens = self._router.wanted.find(_key_of(advice))
        if tokens is None:
            return SuppressionReason.NO_TOKENS
        return await self._give(advice, source, tokens, past, registrations, now)

    async def _give(
        self,
        advice: Advice,
        source: str,
        tokens: bytes,
        past: PastActs,
        registrations: list[Registration],
        now: float,
    ) -> SuppressionReason | None:
        target = advice.targets[0].instance_id
        is_copy = advice.action is AdvisedAction.COPY
        asked = CommandRequest(
            Command.MOVE if is_copy else Command.PIN,
            source,
            LOCATION,
            tokens=tokens,
            target=BlockPlace(target, LOCATION) if is_copy else BlockPlace(),
            copy=is_copy,
        )
        prefix = advice.prefix.prefix
        try:
            command = command_of(asked, registrations, clock=self._clock)
        except RequestError as error:
            logger.debug("Prefix %d is not brought to %s: %s", prefix, target, error)
            return SuppressionReason.NO_WORKER
        command = msgspec.structs.replace(command, origin=BY_ADVICE, prefix=prefix)
        act = Act(command.command_id, advice.action, prefix, source, target, now)
        try:
            await self._commands.issue(command)
        except RequestError:
            return SuppressionReason.REFUSED
        except StorageError as error:
            # The log may have it all the same, so it counts as begun.
            self._begun(act, past)
            logger.warning(
                "Cannot tell whether an advice was carried out: %s. It counts as begun", error
            )
            return SuppressionReason.UNWRITTEN
        self._begun(act, past)
        self.acted[advice.action] += 1
        logger.info(
            "By advice: %s prefix %d of %d tokens, %s to %s, to save %.3f s for %.3f s: command %s",
            *(advice.action, prefix, advice.prefix.tokens, source, target),
            *(advice.gain_s, advice.cost_s, command.command_id),
        )
        self._await_end(command)
        return None

    def _begun(self, act: Act, past: PastActs) -> None:
        past.begin(act)
        self._known[act.command_id] = act

    def _await_end(self, command: CommandRecord) -> None:
        task = asyncio.create_task(self._tell_end(command.command_id))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _tell_end(self, command_id: str) -> None:
        try:
            found = await self._commands.ended(command_id)
        except (RequestError, StorageError) as error:
            logger.warning(
                "Cannot tell what became of command %s: %s. It counts as failed", command_id, error
            )
            found = None
        act = None if found is None else act_of(found)
        if act is None:
            self.failed["unknown"] += 1
            return
        self._known[command_id] = act
        if act.is_done:
            logger.info("By advice: command %s is done, %d tokens", command_id, act.tokens)
            return
        self.failed[act.result] += 1
        logger.warning(
            "By advice: command %s is %s, not done: %s. Nothing is done at %s or %s for a while",
            *(command_id, act.result, act.reason or "no end in time", act.source, act.target),
        )


def _key_of(advice: Advice) -> PrefixKey:
    return (advice.prefix.scope, advice.prefix.prefix)
