"""A prompt's tokens, by the tokenizer in the model's directory: no engine is asked.

Needs `tokenizers` and `jinja2` (the extra `tokenizer`; LiteLLM and vLLM bring both), which are
imported with the first use. The directory is that of the model as Hugging Face's hub has it:
`tokenizer.json`, and for chats `chat_template.jinja`, or the template in `tokenizer_config.json`.

What an engine does beside its template (parsers of tool calls, images) is not done here. So its
users compare some of the tokens with an engine's. reprise-litellm and reprise-ray have this file in
common, as `client.py`.
"""

import json
from array import array
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

FILE_BYTES_MAX: Final = 256 << 20
_OWN: Final = frozenset({"model", "prompt", "messages", "chat_template_kwargs", "chat_template"})


class LocalTokenizer:
    """See the module. Of any thread."""

    def __init__(self, directory: str) -> None:
        """Reads the files: some hundred milliseconds.

        Raises:
            ImportError: `tokenizers` or `jinja2` is missing.
            OSError, ValueError: there is no tokenizer in that directory.
        """
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        folder = Path(directory)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _read(folder / "tokenizer_config.json")
        self._config = json.loads(config) if config else {}
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        self._environment.filters["tojson"] = _tojson
        self._environment.globals["raise_exception"] = _raise
        self._environment.globals["strftime_now"] = _strftime_now
        self._template = self._environment.from_string(self._template_of(folder))
        self._special = {
            name: value if isinstance(value, str) else str(value.get("content", ""))
            for name, value in self._config.items()
            if name.endswith("_token") and isinstance(value, str | dict)
        }

    def tokens(self, asked: Mapping[str, Any]) -> "array[int]":
        """Of what `tokens.question` returned.

        Raises:
            Exception: the template refuses the prompt, or there is none.
        """
        if "prompt" in asked:
            return self._encoded(asked["prompt"], with_special=True)
        return self._encoded(self._rendered(asked), with_special=False)

    def _encoded(self, text: str, *, with_special: bool) -> "array[int]":
        return array("I", self._tokenizer.encode(text, add_special_tokens=with_special).ids)

    def _rendered(self, asked: Mapping[str, Any]) -> str:
        """As vLLM and transformers render a chat."""
        template = self._template
        if asked.get("chat_template"):
            template = self._environment.from_string(asked["chat_template"])
        if asked.get("continue_final_message"):
            raise ValueError("a message that goes on is left to the engine")
        given = {name: value for name, value in asked.items() if name not in _OWN}
        given.setdefault("add_generation_prompt", True)
        given.setdefault("tools", None)
        given.setdefault("documents", None)
        given |= asked.get("chat_template_kwargs") or {}
        messages = [_message(one) for one in asked["messages"]]
        return template.render(**self._special, **given, messages=messages)

    def _template_of(self, folder: Path) -> str:
        apart = _read(folder / "chat_template.jinja")
        if apart:
            return apart
        found = self._config.get("chat_template", "")
        if isinstance(found, list):  # several, by name
            named = {one.get("name"): one.get("template") for one in found}
            found = named.get("default", "")
        return str(found) or "{{ raise_exception('the model has no chat template') }}"


def _message(one: Mapping[str, Any]) -> dict[str, Any]:
    """With text for content, and with the arguments of tools as objects, as templates want them."""
    message = dict(one)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "\n".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    return {**call, "function": {**function, "arguments": json.loads(arguments or "{}")}}


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"Expected at most {FILE_BYTES_MAX} bytes, got {path}")
    return path.read_text(encoding="utf-8")


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """As transformers have it: jinja's own escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _raise(text: str) -> NoReturn:
    raise ValueError(text)
