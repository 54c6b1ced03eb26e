"""A check for people."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from doctor.document import Finding
from doctor.publishers.document import (
    CheckDocument,
    EventCheck,
    PublisherCheck,
    Reading,
)

_NAME_WIDTH: Final = 28


def lines_of(document: CheckDocument) -> Iterator[str]:
    """All of it."""
    for note in document.notes:
        yield f"note: {note}"
    for one in document.publishers:
        yield f"publisher {one.endpoint}"
        yield ""
        yield from _messages(one)
        if one.reading is Reading.SILENT:
            yield f"verdict: {one.verdict}"
            yield ""
            continue
        yield from _events(one)
        yield from _blocks(one)
        yield from _faults(one)
        yield from _registration(one)
        yield f"verdict: {one.verdict}"
        yield ""


def _messages(one: PublisherCheck) -> Iterator[str]:
    messages, numbers = one.messages, one.messages.numbers
    yield f"messages: {messages.count} in {messages.seconds:.1f} s, {messages.replayed} replayed"
    if not messages.count:
        return
    yield f"  frames    {_counted(messages.frames)}; topics {_counted(messages.topics)}"
    gaps = f"{numbers.missing} missing, {numbers.back} back, {numbers.repeated} repeated"
    if numbers.first is None:
        yield "  numbers   none: the frame before the payload is not of 8 bytes"
    else:
        yield f"  numbers   {numbers.first} to {numbers.last}: {gaps}"
    if numbers.unreadable and numbers.first is not None:
        yield f"            {numbers.unreadable} messages have none"
    yield f"  payload   {_counted(messages.encodings)}"
    for form, count in messages.forms.items():
        yield f"            {form} ({count})"
    if messages.fault:
        yield f"            cannot be decoded: {messages.fault}"
    if messages.ranks:
        yield f"  ranks     {', '.join(map(str, messages.ranks))}"
    yield ""


def _events(one: PublisherCheck) -> Iterator[str]:
    yield "kinds, by how many events each uses as they are"
    for kind in one.kinds:
        others = {name: count for name, count in kind.effects.items() if name != "used"}
        more = f"; {_counted(others)}" if others else ""
        yield f"  {kind.type:<14}{kind.used} of {kind.tried}{more}"
    yield ""
    for event in one.events:
        yield from _event(event, one.kinds[0].type, is_read=one.reading is not Reading.NONE)


def _event(event: EventCheck, kind: str, *, is_read: bool) -> Iterator[str]:
    yield f"event {event.tag}: {event.count}, each {_a(event.form)}; by {kind}:"
    for effect, count in event.effects.items():
        yield f"  {count} {effect}"
    for field in event.fields:
        empty = f", empty in {field.empty}" if field.empty else ""
        line = f"    {field.name:<{_NAME_WIDTH}} in {field.seen}{empty}: {field.values}"
        if field.unknown:
            line += f". NOT KNOWN: {field.unknown}"
        elif field.looks_like and not is_read:
            line += f". Looks like {field.looks_like}"
        yield line
    yield ""


def _blocks(one: PublisherCheck) -> Iterator[str]:
    blocks = one.blocks
    if not (blocks.stored or blocks.removed or blocks.cleared):
        return
    yield f"blocks: {blocks.stored} stored, {blocks.removed} removed, {blocks.cleared} clears"
    yield f"  tokens of a block  {_counted(blocks.sizes) or 'none came'}"
    yield f"  media              {_counted(blocks.media)}"
    yield f"  groups             {_counted(blocks.groups)}"
    if blocks.adapters:
        yield f"  adapters           {_counted(blocks.adapters)}"
    yield f"  salts, images      {blocks.keyed} blocks"
    yield f"  without tokens     {blocks.placeholders}"
    yield (
        f"  chains             {blocks.roots} begin a prompt, {blocks.found_parents} hang on a"
        f" block that came before, {blocks.unknown_parents} on one that did not"
    )
    chained = {True: "chained", False: "NOT chained", None: "chained or not: nothing here tells"}
    yield (
        f"  hashes             {chained[blocks.chained]}; {blocks.shared_names} name several"
        f" prefixes, {blocks.second_names} are a second name of one"
    )
    yield f"  stored once more   {blocks.again} while they were held"
    yield f"  removed            {blocks.unheld} that were not held there"
    yield f"  a service          counts {blocks.counted} at the end, and answers {blocks.state}"
    yield ""


def _faults(one: PublisherCheck) -> Iterator[str]:
    for problem in one.problems:
        word = "note" if problem.is_harmless else "problem"
        yield f"{word} {problem.reason}: {problem.count} {problem.effect}"
        for place in problem.where:
            yield f"  at {place}"
        if problem.got:
            yield f"  {problem.got}"
        yield f"  expected: {problem.expected}"
        if not problem.is_harmless:
            yield f"  remedy: {problem.remedy}"
        yield ""
    for finding in one.findings:
        yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"finding {finding.code}: {finding.cause}"
    yield f"  expected: {finding.expected or '-'}   got: {finding.got or '-'}"
    yield f"  remedy: {finding.remedy}"
    yield ""


def _registration(one: PublisherCheck) -> Iterator[str]:
    if one.registrations:
        yield "registration, for POST /register"
        for body in one.registrations:
            yield f"  {msgspec.json.encode(body).decode()}"
    if one.reading is not Reading.NONE:
        for reason in one.reasons:
            yield f"  {reason}"
    yield ""
    if one.questions:
        yield "questions to the engine's author"
        for question in one.questions:
            yield f"  {question}"
        yield ""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or '``'} ({count})" for name, count in counts.items())


def _a(form: str) -> str:
    return f"an {form}" if form[0] in "aeiou" else f"a {form}"
