"""What engines are asked for tokens."""

import json

from tokens.engine_tokenizer import question
from tokens.responses import read_response


def test_parts_of_responses_are_asked_for_as_those_of_chats() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b", "x": 1}]
    prompt = read_response({"model": "m", "input": [{"role": "user", "content": parts}]})
    asked = json.loads(question(prompt, "vLLM"))
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "x": 1}]
    assert asked["messages"] == [{"role": "user", "content": texts}]
