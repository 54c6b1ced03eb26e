"""Every command of README.md and docs/ is run by a test, or is named with the reason why not."""

import re

from tests.documented import ELSEWHERE, ENDS_WITH, Command, commands, read_commands, why_elsewhere

PROGRAMS = re.compile(
    r"^([A-Z_]+=\S+ )*(\.venv/bin/)?(reprise|curl|python -m lab\.benchmarks\.scaling$)"
)
SHELL = re.compile(r"^(export )?[A-Z_]+=\S*|^echo ")
"""What the commands behind them need."""


def test_every_command_is_run_or_has_a_reason() -> None:
    """One that fails here: add it to `ELSEWHERE`, or write it so that it can be run."""
    unknown = [
        one.place
        for one in commands()
        if not why_elsewhere(one) and not PROGRAMS.search(one.text) and not SHELL.search(one.text)
    ]
    assert unknown == []


def test_no_command_that_is_run_leaves_something_to_be_filled_in() -> None:
    left = [
        one.place
        for one in commands()
        if not why_elsewhere(one) and re.search(r"\.\.\.|<[a-z]", one.text)
    ]
    assert left == []


def test_every_reason_is_of_some_command() -> None:
    patterns = [row.pattern for row in ELSEWHERE] + [pattern for pattern, *_ in ENDS_WITH]
    texts = [one.text for one in commands()]
    stale = [
        pattern
        for pattern in patterns
        if not any(re.search(pattern, text, re.DOTALL) for text in texts)
    ]
    assert stale == []


def test_a_command_goes_on_behind_a_backslash_and_within_quotes() -> None:
    document = (
        "Text.\n\n```console\n$ a b \\\n    c  # why\nout\n$ curl -d '{\n  \"x\": 1}'\n{}\n```\n"
        "```bash\none\ntwo\n```\n```yaml\n$ no\n```\n"
    )
    assert list(read_commands("d.md", document)) == [
        Command("d.md", 4, "a b \\\n    c", 4),
        Command("d.md", 7, "curl -d '{\n  \"x\": 1}'", 4),
        Command("d.md", 12, "one\ntwo", 12),
    ]
