"""Whether offsets that were not brought are missing in the log, or were lost on the way."""

from brokers.options import ClientOptions
from brokers.reading import log_bounds
from logs.topic import next_record_offset
from schemas.errors import TableLostError


async def check_gap(
    options: ClientOptions, topic: str, partition: int, expected: int, got: int
) -> None:
    """Returns where the log has no record between.

    Raises:
        TableLostError: it has records there that were not brought, or had some that are gone.
        KafkaError: the broker is away.
    """
    bounds = (await log_bounds(options, topic, [partition]))[partition]
    if bounds.start > expected:
        raise TableLostError(
            f"the log has dropped records {partition}:{expected} to {bounds.start - 1} before"
            " they were folded; keep them longer, or add workers"
        )
    first = await next_record_offset(options, topic, partition, expected)
    if first != got:
        raise TableLostError(f"expected record {partition}:{expected}, got {partition}:{got}")
