"""Text that was made tokens of: by whom, how many, and whether engines agree."""

from typing import TYPE_CHECKING, Final

from schemas.metric_family import (
    Family,
    RoleCollector,
    Samples,
    by_label,
    counter,
    counters,
    gauge,
    gauges,
)
from tokens.local_model import Standing

if TYPE_CHECKING:
    from tokens.tokenizer import Tokenizer


def _different(tokenizer: "Tokenizer") -> Samples:
    return [
        ((name, form.value), float(standing is Standing.DIFFERENT))
        for name, model in sorted(tokenizer.models.items())
        for form, standing in model.standings.items()
    ]


def _kept_bytes(tokenizer: "Tokenizer") -> float:
    found = (model.tokenizer for model in tokenizer.models.values())
    return float(sum(one.kept_bytes for one in found if one is not None))


TOKENS: Final[tuple[Family["Tokenizer"], ...]] = (
    counters(
        "reprise_tokens_prompts",
        "Prompts that came with text, or with token ids in OpenAI's form, by who made the tokens:"
        " given, local (the model's own files), engine (its /tokenize).",
        ("source",),
        lambda one: by_label(one.made),
    ),
    counters(
        "reprise_tokens_made",
        "Tokens of prompts that came with text, or with token ids in OpenAI's form, by who made the"
        " tokens: given, local, engine.",
        ("source",),
        lambda one: by_label(one.tokens_made),
    ),
    counter(
        "reprise_tokens_reused",
        "Tokens of prompts with text that this process had kept from earlier prompts.",
        lambda one: one.reused,
    ),
    counters(
        "reprise_tokens_unproven",
        "Prompts whose tokens some engine of the model has not shown to make the same, by who made"
        " them; answers to them are unconfirmed (tokens_unproven).",
        ("source",),
        lambda one: by_label(one.unproven),
    ),
    counters(
        "reprise_tokens_missing",
        "Prompts without tokens, by reason; POST /route goes by load for each.",
        ("reason",),
        lambda one: by_label(one.missing),
    ),
    counters(
        "reprise_tokens_compared",
        "Prompts that were compared with what an engine computes, by result: equal, different,"
        " silent, left_out (too many at once).",
        ("result",),
        lambda one: by_label(one.compared),
    ),
    gauges(
        "reprise_tokens_differ",
        "Whether an engine computes other tokens than the model's files make, so that engines are"
        " asked instead, by model and form (chat, response, completion).",
        ("model", "form"),
        _different,
    ),
    gauge(
        "reprise_tokens_kept_bytes",
        "Memory of pieces of prompts whose tokens are kept.",
        _kept_bytes,
    ),
    counter(
        "reprise_tokens_faults",
        "Unexpected errors while tokens were compared with an engine's; see the log.",
        lambda one: one.faults,
    ),
)


def tokens_collector(tokenizer: "Tokenizer") -> RoleCollector:
    """All of them."""
    collector = RoleCollector()
    collector.add(TOKENS, lambda: tokenizer)
    return collector
