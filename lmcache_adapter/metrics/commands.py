"""Commands to LMCache's workers: what was issued, what became of it, and who was asked."""

from typing import TYPE_CHECKING, Final, Protocol

from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from lmcache_adapter.commands.executor import Executor
    from lmcache_adapter.commands.issued import IssuedCommands


class HasCommands(Protocol):
    """What has commands issued: the embedded service, or a replica."""

    issued: "IssuedCommands"


ISSUED: Final[tuple[Family[HasCommands], ...]] = (
    counters(
        "reprise_commands_issued",
        "Commands to LMCache's workers that the log has, by action; also those that other replicas"
        " have issued, and those of before that were read.",
        ("action",),
        lambda found: by_label(dict(found.issued.book.issued)),
    ),
    counters(
        "reprise_commands_ended",
        "Commands to LMCache's workers that have ended, by state: done, partial, failed.",
        ("state",),
        lambda found: by_label(dict(found.issued.book.ended)),
    ),
    counters(
        "reprise_commands_results",
        "What became of commands at single LMCache workers, by outcome.",
        ("outcome",),
        lambda found: by_label(dict(found.issued.book.results)),
    ),
    counters(
        "reprise_commands_ignored",
        "Records of commands to LMCache's workers that changed nothing, by reason: `late` is after"
        " the command's end, `unwritten` what the disk has refused.",
        ("reason",),
        lambda found: by_label(dict(found.issued.book.ignored)),
    ),
    gauge(
        "reprise_commands_waiting",
        "Commands to LMCache's workers that were issued here and have not ended.",
        lambda found: found.issued.waiting,
    ),
    gauge(
        "reprise_commands_known",
        "Commands to LMCache's workers whose history is kept.",
        lambda found: len(found.issued.book),
    ),
    counter(
        "reprise_commands_forgotten",
        "Commands to LMCache's workers that had to be forgotten for later ones.",
        lambda found: found.issued.book.forgotten,
    ),
    counter(
        "reprise_commands_refused",
        "Commands to LMCache's workers that were refused since too many were under way.",
        lambda found: found.issued.refused,
    ),
)

EXECUTED: Final["tuple[Family[Executor], ...]"] = (
    gauge(
        "reprise_lmcache_commands_under_way",
        "Commands that LMCache's workers are being asked to execute.",
        lambda executor: executor.under_way,
    ),
    counters(
        "reprise_lmcache_commands",
        "What LMCache's workers made of commands, each worker by itself, by outcome.",
        ("outcome",),
        lambda executor: by_label(dict(executor.outcomes)),
    ),
    counters(
        "reprise_lmcache_commands_refused",
        "LMCache workers that were not asked to execute a command, by reason.",
        ("reason",),
        lambda executor: by_label(dict(executor.refused)),
    ),
    counter(
        "reprise_lmcache_command_links_replaced",
        "Sockets to LMCache's workers that were closed since no answer came.",
        lambda executor: executor.replaced,
    ),
)
