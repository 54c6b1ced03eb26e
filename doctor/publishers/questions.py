"""What no message of a publisher tells, and only the author of its engine knows. Pure."""

from collections.abc import Sequence

from doctor.document import Finding
from doctor.publishers.block_names import BlockNames
from doctor.publishers.folded import FoldedPublisher
from doctor.publishers.survey import Survey
from schemas.registration import Registration


def questions_of(
    registration: Registration,
    survey: Survey,
    names: BlockNames,
    folded: FoldedPublisher,
    doubts: Sequence[Finding],
    alike: Sequence[str],
) -> list[str]:
    """Those that this capture leaves open.

    Args:
        doubts: what the doctor finds that no event tells.
        alike: other kinds that read as much of it.
    """
    found = [f"{one.cause}: {one.remedy}" for one in doubts if names.stored]
    if alike and names.stored:
        found.append(
            f"which engine is it: {' and '.join(alike)} read as much of it as {registration.kind}?"
            " Kinds differ in what they do without an event (docs/publishers.md)"
        )
    if survey.messages and not registration.replay_endpoint:
        found.append("does it replay lost batches? Give --replay then: without it a loss stays")
    numbers = survey.numbers
    if numbers.first is not None and not (numbers.back or folded.counters.restarts):
        found.append("do its numbers begin at 0 again after a restart? None came in this capture")
    if not names.stored:
        return found
    if not names.removed:
        found.append(
            f"does it say which blocks it evicts? None of {names.stored} was removed here. Let it"
            " serve more prompts than its cache holds, and check again"
        )
    if not names.cleared:
        found.append("what does it send when its cache is emptied at once? No such event came")
    if not (names.page_names or names.chained_names) and names.sizes:
        found.append(
            "is a hash of all tokens before the block, too? No equal blocks came behind different"
            " ones: send it two prompts that differ in their first block, and check again"
        )
    if names.again:
        found.append(
            f"{names.again} blocks were stored while they were held: is each a copy, which is"
            " removed once more, or does it announce hits? Register it with"
            " `kv_cache_report_mode` `incremental` or `full`"
        )
    if not names.keyed and not names.adapters.total():
        found.append(
            "how do its events say what else enters a block: salts, adapters, images? None had any:"
            " send requests with each that it supports, and check again"
        )
    if len(names.media) == 1:
        [medium] = names.media
        found.append(
            f"does it keep blocks elsewhere than on its {medium}, and say what goes from there?"
            " Where it has no other tier, register it with `kv_offloading` `none`"
        )
    if names.unheld:
        found.append(
            f"{names.unheld} removed blocks were not held on that medium: were they stored before"
            " the capture, or elsewhere?"
        )
    return found
