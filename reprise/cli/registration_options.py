"""What the publishers of raw frames are, where no registration says it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from schemas.identities import DEFAULT_TENANT
from schemas.limits import BLOCK_SIZE_MAX, DP_RANK_MAX, NAME_BYTES_MAX

if TYPE_CHECKING:
    from schemas.registration import Registration

R = TypeVar("R")


def registration_options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds the options; the command gets them by the names of `Registration`'s fields, and
    `instances`.
    """
    options = (
        click.option("--tenant", "tenant_id", help="The tenant."),
        click.option("--model", "--modelname", "model_name", help="The model."),
        click.option(
            "--instance",
            "instances",
            multiple=True,
            help="The instance; of several engines, once for each.",
        ),
        click.option(
            "--type", "kind", help="What the engine is, as /register names it.  [default: vLLM]"
        ),
        click.option(
            "--block-size", type=click.IntRange(1, BLOCK_SIZE_MAX), help="Tokens of a block."
        ),
        click.option("--dp-rank", type=click.IntRange(0, DP_RANK_MAX), help="The engine's rank."),
        click.option("--lora", "lora_name", help="The adapter of events that name none."),
        click.option("--salt", "additional_salt", help="The salt."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def registrations_of(
    options: dict[str, object], endpoints: Sequence[tuple[str, str]]
) -> "list[Registration | None]":
    """Of each publisher, by its endpoint and replay endpoint; None where nothing was given.

    Raises:
        click.UsageError: what was given is not enough, or wrong.
    """
    from bridge.wire import KINDS
    from schemas.registration import PublisherKind, Registration

    given = {name: value for name, value in options.items() if value is not None}
    instances = given.pop("instances", ())
    assert isinstance(instances, tuple)
    if not given and not instances:
        return [None] * len(endpoints)
    if "model_name" not in given or "block_size" not in given:
        raise click.UsageError(
            "Expected --model and --block-size, which say what the engine is, got one of them"
            " or neither"
        )
    if len(instances) not in (0, len(endpoints)):
        raise click.UsageError(
            f"Expected --instance for each of {len(endpoints)} engines, got {len(instances)}"
        )
    for text in (*given.values(), *instances):
        if isinstance(text, str) and len(text.encode()) > NAME_BYTES_MAX:
            raise click.UsageError(
                f"Expected names of at most {NAME_BYTES_MAX} bytes, got: {text[:80]}..."
            )
    kind = str(given.pop("kind", "vLLM"))
    kinds = {known.lower(): known for known in KINDS}
    if kind.lower() not in kinds:
        raise click.UsageError(f"Expected --type {' or '.join(KINDS)}, got: {kind}")
    names = instances or [f"engine-{number}" for number in range(len(endpoints))]
    tenant = given.pop("tenant_id", DEFAULT_TENANT)
    fields = {"kind": PublisherKind(kinds[kind.lower()]), "tenant_id": tenant, **given}
    return [
        Registration(
            endpoint=endpoint,
            replay_endpoint=replay_endpoint,
            instance_id=name,
            **fields,  # type: ignore[arg-type]
        )
        for name, (endpoint, replay_endpoint) in zip(names, endpoints, strict=True)
    ]
