"""Templates are rendered as transformers does it, and end."""

import itertools
import time
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the extra `text` is not installed")

from tokens.bounds import PROMPT_CHARACTERS_MAX
from tokens.rendering_errors import TemplateError, TemplateSlowError
from tokens.template import ChatTemplate


def rendered(text: str, **variables: Any) -> str:
    return ChatTemplate(text, time.monotonic).rendered({"messages": [], **variables}, 5.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% if true %}\n  a\n{% endif %}\nb", "  a\nb"),
        (
            "   {% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "1",
        ),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ missing }}|{{ missing is defined }}", "|False"),
        ("{% set x = 1 %}{% generation %}{{ x }}{% set x = 2 %}{% endgeneration %}{{ x }}", "11"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}{{ f(2) }}", "[1][2]"),
    ],
)
def test_it_is_rendered_as_transformers_renders_it(text: str, expected: str) -> None:
    assert rendered(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_that_loops_is_ended_by_time_in_the_middle(text: str) -> None:
    clock = itertools.count()
    with pytest.raises(TemplateSlowError, match="does not end in time"):
        ChatTemplate(text, lambda: float(next(clock))).rendered({}, 50.0)


def test_a_template_that_loops_is_ended_by_steps_where_the_clock_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokens.template.RENDERING_STEPS_MAX", 50_000)
    text = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateSlowError, match="does not end in time"):
        ChatTemplate(text, lambda: 0.0).rendered({}, 50.0)


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('SECRET') }}",
        "{{ messages.no.such }}",
        "{{ ''.__class__.__mro__ }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(10 ** 9) | list }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_says_so(text: str) -> None:
    with pytest.raises(TemplateError):
        rendered(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 9999999999 }}",
        "{{ 9999999999 * 'a' }}",
        "{{ ([1] * 9999999999) | length }}",
        "{{ 9 ** 9999999999 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a' | indent(9999999999, true) }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ '\t'.expandtabs(9999999999) }}",
        "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
        "{% set ns = namespace(x='aaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set t = 'a' * 100000 %}{{ ([t] * 1000) | join | length }}",
        "{% set t = 'a' * 100000 %}{{ ([{'t': t}] * 1000) | join('', 't') | length }}",
        "{{ ([''] * 1000) | join('a' * 100000) | length }}",
        "{{ ('a' * 100000).join([''] * 1000) | length }}",
        "{% macro f(t) %}{% for i in range(1000) %}{{ t }}{% endfor %}{% endmacro %}"
        "{{ f('a' * 100000) | length }}",
        "{% set t %}{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
        "{% filter length %}{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}"
        "{% endfilter %}",
        "{% generation %}{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}"
        "{% endgeneration %}",
        "{{ ('a' * 10000) | replace('a', 'b' * 10000) | length }}",
        "{{ ('a ' * 10000) | wordwrap(1, wrapstring='b' * 10000) | length }}",
        "{{ ([[1] * 10000] * 10000) | sum(start=[]) | length }}",
        "{{ ([{'t': [1] * 10000}] * 10000) | sum('t', []) | length }}",
        "{{ [1] | batch(9999999999, 0) | list | length }}",
        "{{ [1] | slice(9999999999) | list | length }}",
    ],
)
def test_no_expression_makes_more_than_a_prompt_may_have(text: str) -> None:
    with pytest.raises(TemplateError, match=r"more than|width"):
        rendered(text)


def test_what_is_within_the_bounds_is_as_jinja_makes_it() -> None:
    text = (
        "{{ 'ab' * 2 }}{{ 3 * 4 }}{{ [1] + [2] }}{{ 'a' + 'b' }}{{ 2 ** 3 }}{{ 7 % 4 }}"
        "{{ '%5.1f%%' % 2 }}{{ '%s' | format(1) }}{{ '{:>3}'.format(1) }}{{ 'a' | center(3) }}"
        "{{ 'a\\nb' | indent(1) }}{{ 'a'.ljust(2) }}{{ 'ab'.replace('a', 'c') }}{{ 1.5 + 1 }}"
        "{{ 1 ~ 'b' ~ none ~ x }}{{ [1, 'b'] | join('-') }}"
        "{{ [{'k': 1}, {'k': 2}] | join(',', 'k') }}"
        "{{ '-'.join(['a', 'b']) }}{{ 'aa' | replace('a', 'b', 1) }}{{ [1, 2] | sum }}"
        "{{ [[1], [2]] | sum(start=[]) }}{{ [{'k': 1}] | sum('k') }}{{ 'a b' | wordwrap(1) }}"
        "{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2] | slice(2) | list }}"
        "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(1) }}{% set y %}z{{ 1 }}{% endset %}{{ y }}"
    )
    assert rendered(text) == (
        "abab12[1, 2]ab83  2.0%1  1 a a\n ba cb2.5"
        "1bNone1-b1,2a-bba3[1, 2]1a\nb[[1, 2], [3, 0]][[1], [2]]<1>z1"
    )


def test_a_template_that_makes_too_much_is_ended() -> None:
    size = PROMPT_CHARACTERS_MAX // 1000
    with pytest.raises(TemplateError, match="more than"):
        rendered("{% for i in range(1001) %}{{ x }}{% endfor %}", x="x" * size)


@pytest.mark.parametrize("text", ["{% if %}", "{{", "{% nothing %}", "{% for x in y %}"])
def test_what_is_no_template_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(TemplateError, match=r"expected a template of Jinja, got .* at line 1"):
        ChatTemplate(text, time.monotonic)


@pytest.mark.parametrize(
    ("text", "takes_parts"),
    [
        ("{{ messages }}", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m['content'] | list %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m.tools %}{% endfor %}{% endfor %}", False),
        ("{% for m in others %}{% for p in m.content %}{% endfor %}{% endfor %}", False),
        (
            "{% set l = messages %}{% for m in l %}{% for p in m.content %}{% endfor %}"
            "{% endfor %}",
            True,
        ),
        ("{% for content in content %}{% endfor %}", True),
        (
            "{% macro r(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ r(m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro r(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ r(c=m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro r(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ r(m.role) }}{% endfor %}",
            False,
        ),
        ("{% macro r(content) %}{% for p in content %}{% endfor %}{% endmacro %}", False),
        ("{% set a, b = messages %}{% for p in content %}{% endfor %}", False),
    ],
)
def test_whether_it_goes_through_parts_is_found_as_vllm_finds_it(
    text: str, takes_parts: bool
) -> None:
    assert ChatTemplate(text, time.monotonic).takes_parts is takes_parts


def continued(text: str, content: Any) -> str:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    return ChatTemplate(text, time.monotonic).continued({"messages": messages}, 5.0)


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "so ", "<q><so "),
        ("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "so ", "<q><so"),
        (
            "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}."
            "{% endfor %}",
            [{"type": "text", "text": "so"}],
            "q.so",
        ),
    ],
)
def test_a_message_goes_on(text: str, content: Any, expected: str) -> None:
    assert continued(text, content) == expected


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("{{ messages }}", "x"),
        ("{{ messages[0].content }}", "x"),
        ("{{ messages[-1].content }}", None),
        ("{{ messages[-1].content }}", [{"type": "image"}]),
    ],
)
def test_a_message_that_cannot_go_on_is_refused(text: str, content: Any) -> None:
    with pytest.raises(TemplateError):
        continued(text, content)
