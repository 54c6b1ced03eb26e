"""`reprise publishers check` of mutations of every captured frame: it ends with an answer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from doctor.publishers.document import CheckDocument
from doctor.publishers.words import lines_of
from tests.fuzz.mutation import Base, Mutator
from tests.unit.bridge.messages import captured_messages
from tests.unit.doctor.publishers.captures import borealis, checked

pytestmark = pytest.mark.timeout(1800)

MUTATIONS: Final = 100_000
MESSAGES: Final = 100  # of one capture


class Sender:
    """Messages of all publishers, most of them changed. All follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._mutator = Mutator(self._random)
        self._messages = [one.frames for one in captured_messages()] + borealis()
        self._values = [
            Base(one.decoded) for one in captured_messages() if len(one.frames) == 3
        ] + [Base(json.loads(frames[-1]), msgspec.json.encode) for frames in borealis()]

    def messages(self) -> Iterator[list[bytes]]:
        """Those of one capture."""
        for number in range(MESSAGES):
            frames = list(self._random.choice(self._messages))
            match self._random.randrange(4):
                case 0:
                    frames[-1] = self._mutator.tree(self._random.choice(self._values))
                case 1:
                    frames[-1] = self._mutator.raw(frames[-1])
                case 2:
                    at = self._random.randrange(len(frames))
                    frames[at] = self._mutator.raw(frames[at])
            if self._random.randrange(3):
                frames = [frames[0], number.to_bytes(8, "big"), frames[-1]]
            yield frames[: self._random.randrange(1, 5)] if number % 20 == 0 else frames


@pytest.mark.parametrize("seed", [41])
def test_a_check_of_any_frames_ends_with_an_answer(
    seed: int, tmp_path: Path, scaled: Callable[[int], int]
) -> None:
    sender = Sender(seed)
    for number in range(max(scaled(MUTATIONS) // MESSAGES, 1)):
        path = tmp_path / str(number)
        found = checked(path, sender.messages())
        path.unlink()
        assert found.messages.count == MESSAGES
        document = CheckDocument(publishers=[found], notes=[])
        assert list(lines_of(document))
        assert msgspec.json.decode(msgspec.json.encode(document), type=CheckDocument) == document
