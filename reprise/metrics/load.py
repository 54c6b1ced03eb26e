"""What engines say of their load, and what it costs to ask them."""

from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from bridge.engine_http.load_watch import LoadWatch

LOAD: Final["tuple[Family[LoadWatch], ...]"] = (
    counter(
        "reprise_bridge_load_samples",
        "Samples of what an engine's rank carries that were read off engines' HTTP addresses.",
        lambda watch: watch.samples,
    ),
    counters(
        "reprise_bridge_load_failures",
        "Questions to engines' HTTP addresses for their load that brought nothing, by reason:"
        " silent, refused (an error status), no_load (it does not say) or internal_error.",
        ("reason",),
        lambda watch: by_label(watch.failures),
    ),
    counters(
        "reprise_bridge_load_dropped",
        "What was left out of engines' answers about their load, by reason: lines (too_many, cut,"
        " long_line, bad_line, bad_number, bad_rank, repeated), and registrations of which the"
        " answer does not tell (no_rank, other_rank).",
        ("reason",),
        lambda watch: by_label(watch.dropped),
    ),
    counter(
        "reprise_bridge_load_cpu_seconds",
        "CPU seconds that asking engines for their load took.",
        lambda watch: watch.cpu_s,
    ),
    gauge(
        "reprise_bridge_load_period_seconds",
        "How often each engine is asked for its load: as wanted, or longer where that costs more"
        " than it may.",
        lambda watch: watch.period_s,
    ),
    gauge(
        "reprise_bridge_load_servers",
        "Engines' HTTP addresses that are asked for their load.",
        lambda watch: watch.servers,
    ),
)
