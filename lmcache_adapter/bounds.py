"""Bounds that several modules of `lmcache_adapter/` rely on, and how they are related."""

from typing import Final

from schemas.limits import COMMAND_REQUEST_S, COMMANDS_WAITING_MAX

COMMAND_ANSWER_S: Final = 5.0  # for a worker's answer, its turn behind others included: `timeout`
COMMAND_CLOSE_S: Final = 5.4  # from the command to its end, whoever has not answered by then

# Anybody who reaches the controller's sockets may write to them. What is above a bound is dropped:
# reprise_lmcache_dropped_total with the reason that is given.
LMCACHE_OPERATIONS_MAX: Final = 262_144  # of one message: reason="too_many_operations"
LMCACHE_WORKERS_MAX: Final = 1024  # an ErrorMsg; reason="too_many_workers"
LMCACHE_HANDSHAKE_MS: Final = 5_000  # of ZMTP, for whoever connects

# What is older is forgotten: reprise_commands_forgotten_total.
COMMANDS_KEPT_MAX: Final = 10_000  # some 1 KiB each

COMMAND_WRITE_S: Final = 4.0  # that a request waits for the log to have its command: status="503"

assert COMMAND_ANSWER_S < COMMAND_CLOSE_S < COMMAND_REQUEST_S < 6.0, "a command ends within 6 s"
assert COMMANDS_KEPT_MAX > COMMANDS_WAITING_MAX, "what is under way is not forgotten"
