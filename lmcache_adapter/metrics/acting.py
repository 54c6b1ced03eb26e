"""What was done by advice, and what was not."""

from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from lmcache_adapter.acting.actor import Actor

ACTING: Final["tuple[Family[Actor], ...]"] = (
    counter(
        "reprise_acting_rounds",
        "How often this service has looked whether there is advice to act on.",
        lambda actor: actor.rounds,
    ),
    counter(
        "reprise_acting_unread",
        "Looks at which nothing was done by advice, since the table or the log of commands could"
        " not be read.",
        lambda actor: actor.unread,
    ),
    counters(
        "reprise_acting_acted",
        "Commands that this service gave to LMCache's workers by its own advice, by action.",
        ("action",),
        lambda actor: by_label(dict(actor.acted)),
    ),
    counters(
        "reprise_acting_failed",
        "Commands given by advice that have failed, by result: partial or failed where not all of"
        " their workers executed them, empty where no token was copied or pinned, unknown where"
        " that cannot be told.",
        ("result",),
        lambda actor: by_label(dict(actor.failed)),
    ),
    counters(
        "reprise_acting_suppressed",
        "Advice that was not acted on, counted each time it is looked at, by reason: under_way,"
        " repeated (the same within 300 s), backing_off (commands there have failed), at_once (too"
        " many under way), rate (too many in a minute), no_worker, no_tokens (no prompt with them"
        " has come), too_long, refused, unwritten.",
        ("reason",),
        lambda actor: by_label(dict(actor.suppressed)),
    ),
    gauge(
        "reprise_acting_under_way",
        "Commands given by advice that have not ended, of all services.",
        lambda actor: actor.under_way,
    ),
    counter(
        "reprise_acting_faults",
        "Unexpected errors while acting on advice; they are in the log.",
        lambda actor: actor.faults,
    ),
)
