from collections import Counter
from itertools import islice, pairwise

import pytest

from lab.traffic.conversations import Conversations, Traffic

SMALL = Traffic(
    system_tokens=(40, 24, 8),
    user_tokens=(1, 10),
    answer_tokens=(1, 10),
    turns=(1, 6),
    open_max=12,
    prompt_tokens_max=100,
)


def test_same_seed_gives_the_same_turns() -> None:
    first, second = (list(islice(Conversations(7), 100)) for _ in range(2))
    assert first == second
    assert list(islice(Conversations(8), 100)) != first


def test_each_turn_extends_the_prompt_and_answer_before_it() -> None:
    conversations = Conversations(1, SMALL)
    history: dict[int, list[int]] = {}
    for turn in islice(conversations, 500):
        before = history.get(turn.conversation)
        starts = [before] if before is not None else conversations.system_prompts
        assert any(list(turn.prompt[: len(start)]) == start for start in starts)
        assert before is None or len(turn.prompt) > len(before)
        history[turn.conversation] = [*turn.prompt, *turn.answer]
    assert len(history) > SMALL.open_max


def test_prompts_and_conversations_are_bounded() -> None:
    turns = list(islice(Conversations(2, SMALL), 1000))
    assert max(len(turn.prompt) for turn in turns) <= SMALL.prompt_tokens_max
    assert max(Counter(turn.conversation for turn in turns).values()) <= SMALL.turns[1]
    assert all(0 <= token < SMALL.vocabulary for turn in turns for token in turn.prompt)


def test_sessions_interleave_and_some_prompts_are_popular() -> None:
    conversations = Conversations(3, SMALL)
    turns = list(islice(conversations, 2000))
    assert sum(a.conversation != b.conversation for a, b in pairwise(turns)) > 1000
    heads = [tuple(prompt[:8]) for prompt in conversations.system_prompts]
    used = Counter(tuple(turn.prompt[:8]) for turn in turns)
    assert used[heads[0]] > used[heads[-1]] > 0


def test_traffic_without_system_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected system prompts"):
        Conversations(0, Traffic(system_tokens=()))


def test_a_conversation_that_spoke_leaves_turns_to_others() -> None:
    conversations = Conversations(3, Traffic(open_max=8, turns=(100, 100), rest=5))
    spoke = [next(conversations).conversation for _ in range(60)]
    assert all(spoke[at] not in spoke[max(at - 5, 0) : at] for at in range(60))
    with pytest.raises(ValueError, match="fewer that rest"):
        Conversations(3, Traffic(open_max=8, rest=8))
