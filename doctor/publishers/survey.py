"""What the messages of one publisher have in common, by their frames and the values in them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from doctor.publishers.bounds import (
    CHECK_BLOCKS_MAX,
    CHECK_DEPTH_MAX,
    CHECK_FIELDS_MAX,
    CHECK_NAME_CHARS_MAX,
    CHECK_TAGS_MAX,
    CHECK_VALUES_MAX,
)
from doctor.publishers.payload import TAG_FIELDS, SentEvent, SentPayload

_MEDIA: Final = frozenset(
    {"GPU", "HBM", "DEVICE", "VRAM", "CPU", "DRAM", "HOST", "CPU_PINNED", "DISK", "SSD", "NVME"}
)
_TOPIC_CHARS: Final = 200
_MANY_TOKENS: Final = 4  # of a list that may be tokens without a number that says how many


class NumberSurvey:
    """The numbers of the messages.

    Attributes:
        first, last: None before one came.
        missing: how many were left out.
        back: how often a number was below the one before it, or repeated: `repeated`.
        unreadable: messages without a frame of 8 bytes before the last one.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.missing = self.back = self.repeated = self.unreadable = 0

    def note(self, heads: Sequence[bytes]) -> None:
        """A message of these frames, without its payload."""
        if not heads or len(heads[-1]) != 8:
            self.unreadable += 1
            return
        number = int.from_bytes(heads[-1], "big")
        if self.last is None:
            self.first = number
        elif number > self.last:
            self.missing += number - self.last - 1
        elif number == self.last:
            self.repeated += 1
        else:
            self.back += 1
        self.last = number


class FieldSurvey:
    """One field of one kind of event.

    Attributes:
        name: with the maps that it is in, as `data.blocks[].id`.
        seen: events that have it; empty: of these, those where it is null or empty.
        roles: what its values look like, by how often.
        texts: values of a text, by how often; numbers: of an integer that stands alone, likewise.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen = self.empty = 0
        self.roles: Counter[str] = Counter()
        self.texts: Counter[str] = Counter()
        self.numbers: Counter[int] = Counter()
        self._kinds: Counter[str] = Counter()
        self._lowest: int | None = None
        self._highest = 0
        self._shortest: int | None = None
        self._longest = 0

    def note(self, value: object) -> None:
        """An event has this value of it."""
        self.seen += 1
        if value is None or value in ("", [], {}, b""):
            self.empty += 1
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and (len(self.numbers) < CHECK_VALUES_MAX or value in self.numbers)
        ):
            self.numbers[value] += 1
        self._note(value, "")

    def _note(self, value: object, within: str) -> None:
        if isinstance(value, list):
            self._measure(len(value))
            inner = next((one for one in value if one is not None), None)
            if inner is None:
                self._note_kind(f"{within}list")
            for one in value if isinstance(inner, int) else value[:CHECK_VALUES_MAX]:
                if not isinstance(one, list):
                    self._note(one, f"{within}list of ")
            if isinstance(inner, list):
                self._note_kind(f"{within}list of lists")
            return
        if isinstance(value, bool) or value is None:
            self._note_kind(within + ("null" if value is None else "yes or no"))
        elif isinstance(value, int):
            self._note_kind(f"{within}integers")
            self._lowest = value if self._lowest is None else min(self._lowest, value)
            self._highest = max(self._highest, value)
        elif isinstance(value, str):
            self._note_kind(f"{within}text")
            if len(self.texts) < CHECK_VALUES_MAX or value[:CHECK_NAME_CHARS_MAX] in self.texts:
                self.texts[value[:CHECK_NAME_CHARS_MAX]] += 1
        elif isinstance(value, bytes):
            self._note_kind(f"{within}{len(value)} bytes")
        else:
            kind = "map" if isinstance(value, dict) else "number"
            self._note_kind(within + kind)

    def _note_kind(self, kind: str) -> None:
        if len(self._kinds) < CHECK_VALUES_MAX or kind in self._kinds:
            self._kinds[kind] += 1

    def _measure(self, length: int) -> None:
        self._shortest = length if self._shortest is None else min(self._shortest, length)
        self._longest = max(self._longest, length)

    @property
    def shape(self) -> str:
        """Its values, for people."""
        kinds = " or ".join(kind for kind, _ in self._kinds.most_common())
        parts = [kinds or "nothing"]
        if self._shortest is not None:
            parts.append(f"{_span(self._shortest, self._longest)} long")
        if self._lowest is not None:
            parts.append(_span(self._lowest, self._highest))
        if self.texts and not self._longest:
            parts.append(", ".join(f"`{text}`" for text in self.texts))
        elif self.texts:
            parts.append(f"`{next(iter(self.texts))}` and the like")
        return ", ".join(parts)

    @property
    def looks_like(self) -> str:
        """What its values may be; "" where nothing tells."""
        [(role, _)] = self.roles.most_common(1) or [("", 0)]
        return role


def _span(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


class EventSurvey:
    """One kind of event: how many there are, and their fields by name."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.count = 0
        self.is_array = False
        self.fields: dict[str, FieldSurvey] = {}


class Survey:
    """All messages of one publisher; one owner.

    Attributes:
        messages: how many came.
        replayed: of these, those of its replay socket.
        frames: how many frames they had; topics, encodings, forms, ranks: likewise.
        fault: the first payload that could not be taken apart, and where; "" for none.
        events: by tag.
        events_seen: all of them.
        block_sizes: what the lengths of lists say, where the fields look like tokens of blocks.
    """

    def __init__(self) -> None:
        self.messages = self.replayed = self.events_seen = 0
        self.began_at = self.ended_at = 0.0
        self.frames: Counter[int] = Counter()
        self.topics: Counter[str] = Counter()
        self.encodings: Counter[str] = Counter()
        self.forms: Counter[str] = Counter()
        self.ranks: Counter[int] = Counter()
        self.block_sizes: Counter[int] = Counter()
        self.numbers = NumberSurvey()
        self.fault = ""
        self.events: dict[str, EventSurvey] = {}
        self._hashes: set[object] = set()

    def note_message(
        self, frames: Sequence[bytes], payload: SentPayload, time: float, *, replayed: bool
    ) -> None:
        """A message came at this time."""
        self.began_at = self.began_at if self.messages else time
        self.ended_at = time
        self.messages += 1
        self.replayed += replayed
        self.frames[len(frames)] += 1
        self.numbers.note(frames[:-1])
        topic = frames[0].decode(errors="replace")[:_TOPIC_CHARS] if len(frames) > 1 else ""
        if len(self.topics) < CHECK_VALUES_MAX or topic in self.topics:
            self.topics[topic] += 1
        self.encodings[payload.encoding] += 1
        if payload.form and len(self.forms) < CHECK_TAGS_MAX:
            self.forms[payload.form] += 1
        if payload.rank is not None and len(self.ranks) < CHECK_TAGS_MAX:
            self.ranks[payload.rank] += 1
        if payload.fault and not self.fault:
            self.fault = f"message {self.messages}: {payload.fault}"

    def note_event(self, event: SentEvent) -> None:
        """One of its events."""
        self.events_seen += 1
        survey = self.events.get(event.tag)
        if survey is None:
            if len(self.events) >= CHECK_TAGS_MAX:
                return
            survey = self.events[event.tag] = EventSurvey(event.tag)
        survey.count += 1
        survey.is_array = isinstance(event.value, list)
        leaves = dict(_leaves(event.value, "", CHECK_DEPTH_MAX))
        for name, value in leaves.items():
            field = survey.fields.get(name)
            if field is None:
                if len(survey.fields) >= CHECK_FIELDS_MAX:
                    continue
                field = survey.fields[name] = FieldSurvey(name)
            field.note(value)
        for name, role in self._roles(leaves):
            if name in survey.fields:
                survey.fields[name].roles[role] += 1

    @property
    def model_name(self) -> str:
        """What a topic of the form kv@ID@MODEL calls the model, or the events; "" for neither."""
        named = next((topic for topic in self.topics if topic.count("@") == 2), "")
        is_named = named.startswith("kv@")
        return named.rpartition("@")[2] if is_named else self.value_of("model_name")

    def value_of(self, field: str) -> str:
        """The commonest text of a field of this name, in whichever event; "" for none."""
        texts: Counter[str] = Counter()
        for event in self.events.values():
            if field in event.fields:
                texts.update(event.fields[field].texts)
        [(value, _)] = texts.most_common(1) or [("", 0)]
        return value

    def numbers_of(self, *fields: str) -> Counter[int]:
        """The integers of all fields of these names, with or without the maps that they are in."""
        numbers: Counter[int] = Counter()
        for event in self.events.values():
            for name, field in event.fields.items():
                if name.rpartition(".")[2] in fields:
                    numbers.update(field.numbers)
        return numbers

    def _roles(self, leaves: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """What the fields of an event look like, by how their lengths and values fit together."""
        lists = {name: one for name, one in leaves.items() if isinstance(one, list) and one}
        sizes = {name: one for name, one in leaves.items() if isinstance(one, int) and one > 1}
        named, tokens = self._blocks_of(lists, sizes)
        for name in named:
            self._remember(lists[name])
            yield name, "the names of blocks"
        for name in tokens:
            yield name, "tokens"
        for name, value in leaves.items():
            if isinstance(value, str) and value.upper().partition(":")[0] in _MEDIA:
                yield name, "a medium"
            elif name in sizes and value in self.block_sizes and name not in (*named, *tokens):
                yield name, "tokens of a block"
            elif _is_name(value) and value in self._hashes:
                yield name, "the block before, or one block"
            elif name in lists and name not in (*named, *tokens) and self._knows(value):
                yield name, "the names of blocks"

    def _blocks_of(
        self, lists: dict[str, list[Any]], sizes: dict[str, int]
    ) -> tuple[list[str], list[str]]:
        """Which lists have a value for each block, and which have all of their tokens."""
        for tokens, values in lists.items():
            if not all(isinstance(one, int) and 0 <= one < 2**32 for one in values):
                continue
            for named, blocks in lists.items():
                size, rest = divmod(len(values), len(blocks))
                is_said = size in sizes.values()
                if named == tokens or rest or not (is_said or size >= _MANY_TOKENS):
                    continue
                if _is_name(blocks[0]) and size > 1:
                    if len(self.block_sizes) < CHECK_TAGS_MAX or size in self.block_sizes:
                        self.block_sizes[size] += 1
                    return [named], [tokens]
        return [], []

    def _remember(self, values: list[Any]) -> None:
        if len(self._hashes) < CHECK_BLOCKS_MAX:
            self._hashes.update(filter(_is_name, values))

    def _knows(self, value: object) -> bool:
        one = value[0] if isinstance(value, list) and value else None
        return _is_name(one) and one in self._hashes


def _is_name(value: object) -> bool:
    """Whether it may be what a block is called."""
    return isinstance(value, int | str | bytes) and not isinstance(value, bool)


def _leaves(value: object, before: str, levels: int) -> Iterator[tuple[str, Any]]:
    """The fields of an event by name; those of maps in lists as lists of what each map has."""
    if isinstance(value, list) and not before:  # an event as an array: its name stands first
        for place, held in enumerate(value[1:CHECK_FIELDS_MAX], start=1):
            yield f"[{place}]", held
        return
    if not isinstance(value, dict):
        return
    for key, held in value.items():
        name = f"{before}{str(key)[:CHECK_NAME_CHARS_MAX]}"
        if not before and key in TAG_FIELDS and held == tag_name(value):
            continue
        if isinstance(held, dict) and levels > 1:
            yield from _leaves(held, f"{name}.", levels - 1)
        elif isinstance(held, list) and held and all(isinstance(one, dict) for one in held):
            columns: dict[str, list[Any]] = {}
            for one in held:
                for inner, leaf in _leaves(one, f"{name}[].", levels - 1) if levels > 1 else ():
                    column = columns.setdefault(inner, [])
                    column += leaf if isinstance(leaf, list) else [leaf]
            yield from columns.items()
        else:
            yield name, held


def tag_name(value: dict[Any, Any]) -> object:
    """The first of an event's own fields that says what it is called."""
    return next((value[one] for one in TAG_FIELDS if isinstance(value.get(one), str)), None)
