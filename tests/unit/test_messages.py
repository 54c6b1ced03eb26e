"""What every message has to say, as far as its form tells: `python -m tests.messages` has them."""

import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.messages import Message, messages, messages_of, own_errors

WORDS: Final = re.compile(
    r"\b(whoever|whatever|nobody|somebody|anew|so many|so much|maybe)\b", re.I
)
"""Words that say nothing to who has to act, or are not of this field."""

UNITS: Final = r"(?:s|ms|µs|us|seconds|minutes|hours|%|KiB|MiB|GiB|MB|GB)\b"
BARE: Final = re.compile(r"\{([^{}:!]+)\} ?" + UNITS)
LOGGED_BARE: Final = re.compile(r"%s (?:%%|" + UNITS + ")")
PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}|%[-.\d]*[a-z]")
CLAUSE: Final = re.compile(r"[;,:] |\. ")
CAME: Final = re.compile(
    r"\b(got|but|not|no|none|found|neither|both|without|more|is|are|has|have|came)\b"
    r"|: .*\{|\{more\}"
)
REFUSALS: Final = frozenset(
    {
        "RequestError",
        "ConfigurationError",
        "CaptureError",
        "TraceError",
        "EndpointError",
        "AddressRefusedError",
        "RegistrationError",
        "UsageError",
        "BadParameter",
        "BackupError",
        "AccessError",
        "PolicyError",
        "PastError",
        "UnusableError",
        "GrpcRefusal",
    }
)
"""Errors that say what is wrong with what somebody has given."""

PREFIXED: Final = {
    "BadParameter": "click names the option in front of it",
    "BatchError": "`WireError` puts the reason in front of it, and the log the publisher",
    "EventError": "the same",
    "MessageError": "the log names the worker in front of it",
    "OpenFilesError": "puts its own words in front of what the system says",
    "RecordFormatError": "puts what cannot be read in front of it",
}
"""Errors whose argument is a detail, with what stands before it."""


def _is_foreign(message: Message) -> bool:
    return any(one.rpartition(".")[2] not in own_errors() for one in message.caught)


def says_nothing_words(message: Message) -> bool:
    """No word that names nobody and nothing."""
    return WORDS.search(message.text) is None


def puts_its_own_words_before_a_foreign_error(message: Message) -> bool:
    """An error of the system or a library is never all that is said, nor is its type or `repr`."""
    if not (message.is_error or message.kind.startswith("log ")):
        return True
    text = message.text
    if re.search(r"\{\w*(error|failure)\w*!r\}|type\(\w*error\w*\)", text):
        return False
    if message.kind != "log exception" and "%r" in text:
        return False
    if not _is_foreign(message) or message.kind.removeprefix("raise ") in PREFIXED:
        return True
    rest = re.sub(r"\{(error|str\(error\)|error\.\w+)\}", "", text)
    return bool(re.search(r"[a-z]{2}", rest))


def formats_its_numbers(message: Message) -> bool:
    """A number with a unit has a format: no 110.07093819400006 s."""
    if message.kind.startswith("log ") and LOGGED_BARE.search(message.text):
        return False
    return BARE.search(message.text) is None


def says_what_happens_next(message: Message) -> bool:
    """A log line at WARNING or above has a second clause, in words: what happens now, or what is to
    be done.
    """
    if not message.is_loud or message.text.startswith("{"):
        return True
    return any(
        re.search(r"[a-z]{2}", PLACEHOLDER.sub("", clause))
        for clause in CLAUSE.split(message.text)[1:]
    )


def says_what_came(message: Message) -> bool:
    """A refusal that says what was expected says what came, too."""
    if message.kind.removeprefix("raise ") not in REFUSALS:
        return True
    if not re.search(r"\b[Ee]xpected\b|\bmust\b", PLACEHOLDER.sub("", message.text)):
        return True
    if re.search(r"\}; expected: ", message.text):
        return True  # what came stands in front of it
    rest = re.split(r"\b[Ee]xpected\b|\bmust\b", message.text, maxsplit=1)[1]
    return CAME.search(rest) is not None


def shows_no_internals(message: Message) -> bool:
    """No None, no `repr` but of a text that is cut, no name of a class."""
    text = message.text
    if re.search(r"\bNone\b", PLACEHOLDER.sub("", text)):
        return False
    return "__name__" not in text and not re.search(r"\{(?!shown|name|text|\w+\[)[^{}]*!r\}", text)


Rule = Callable[[Message], bool]
EXCEPTIONS: Final[dict[str, dict[str, str]]] = {
    "says_what_happens_next": {"%s; %s": "an error of the spool, and behind it what happens now"},
    "says_what_came": {
        "must be a bin or an array": "Conductor's, in msgpack alone",
        "request body must be a msgpack map": "Conductor's, in msgpack alone",
        "map keys must be strings": "Conductor's, in msgpack alone",
    },
}
"""By rule: texts that need not keep it, each with the reason."""

RULES: Final[tuple[Rule, ...]] = (
    says_nothing_words,
    puts_its_own_words_before_a_foreign_error,
    formats_its_numbers,
    says_what_happens_next,
    says_what_came,
    shows_no_internals,
)


def broken(rule: Rule, found: Iterator[Message] | tuple[Message, ...]) -> list[str]:
    """Those that break it, but for its exceptions."""
    excepted = EXCEPTIONS.get(rule.__name__, {})
    return [
        str(one)
        for one in found
        if not rule(one) and not any(text in one.text for text in excepted)
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_message_keeps_the_rule(rule: Rule) -> None:
    wrong = broken(rule, messages())
    assert not wrong, f"{rule.__doc__}\n" + "\n".join(wrong)


def test_no_exception_is_kept_for_nothing() -> None:
    texts = [one.text for one in messages()]
    for rule, excepted in EXCEPTIONS.items():
        (checked,) = (one for one in RULES if one.__name__ == rule)
        for part in excepted:
            assert any(part in text for text in texts), part
            assert not all(checked(one) for one in messages() if part in one.text), part


BAD: Final = {
    "says_nothing_words": [
        "raise StorageError(f'stop whatever uses {path}')",
        "click.echo('made anew')",
    ],
    "puts_its_own_words_before_a_foreign_error": [
        "try: go()\nexcept OSError as error: raise ConfigurationError(str(error)) from error",
        "try: go()\nexcept KafkaError as error: raise StorageError(f'{error}') from error",
        "text = f'cannot read: {error!r}'\nraise StorageError(text)",
        "logger.warning('Cannot read, retrying: %r', error)",
    ],
    "formats_its_numbers": [
        "raise StorageError(f'no answer within {wait_s} s')",
        "logger.info('It is %s s behind', behind_s)",
    ],
    "says_what_happens_next": [
        "logger.warning('Cannot ask %s: %s', name, error)",
        "logger.exception('Unexpected error in a thread')",
    ],
    "says_what_came": [
        "raise RequestError('invalid_value', f'limit must be 1 to {most}', field='limit')",
        "text = 'Expected a number'\nraise ConfigurationError(text)",
    ],
    "shows_no_internals": [
        "raise StorageError(f'failed: {type(error).__name__}')",
        "raise StorageError('expected a name, got None')",
        "raise StorageError(f'got {registration!r}')",
    ],
}
GOOD: Final = (
    "try: go()\nexcept OSError as error: raise ConfigurationError(f'Cannot read {path}: {error}')",
    "raise StorageError(f'no answer within {wait_s:g} s')",
    "logger.warning('Cannot ask %s: %s. It is asked again', name, error)",
    "logger.debug('Cannot ask %s: %r', name, error)",
    "raise RequestError('x', f'limit must be 1 to {most}', field='limit', more=f', got: {text}')",
    "raise ConfigurationError(f'Expected a number, got: {text}')",
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_message_that_breaks_the_rule_is_found(rule: Rule) -> None:
    for source in BAD[rule.__name__]:
        (found,) = broken(rule, messages_of(source, "x.py"))
        assert found.startswith("x.py:")
    for source in GOOD:
        assert not broken(rule, messages_of(source, "x.py")), source


def test_the_list_has_messages_of_every_kind_and_room() -> None:
    found = messages()
    kinds = {one.kind for one in found}
    assert {"help", "echo", "log warning", "log exception", "raise RequestError"} <= kinds
    assert {one.place.partition("/")[0] for one in found} >= {"bridge", "query_api", "reprise"}
    texts = [one.text for one in found]
    for part in (
        "Cannot write to %s, partition %d, retrying: %s",  # logged
        "{name} must be from 0 to {most}, got: {size}",  # from a local variable, with its end
        "Expected a loopback address as {option}",  # of parts
        "Where the service answers.",  # an option's help
    ):
        assert any(part in text for text in texts), part
