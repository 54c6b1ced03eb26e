"""Runs as one HTML page: tables, and pictures within it. It loads nothing."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from lab.whatif.plan import POLICIES_GROUP
from lab.whatif.report.conclusion import conclusion_of, explanations_of
from lab.whatif.report.document import Document, groups_of
from lab.whatif.report.plots import Picture
from lab.whatif.report.table import LEGEND, OVERLOADED, rows_of, setup_line, trace_line
from replay.traces.session_hits import session_line

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em;
  color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
.note { color: #a33; }
.small { color: #555; font-size: 90%; }
tr.best { font-weight: bold; background: #eef7ee; }
tr.over { color: #999; }
"""


def page_of(document: Document, pictures: Iterable[Picture]) -> str:
    """The page."""
    return "\n".join(_lines(document, list(pictures))) + "\n"


def _lines(document: Document, pictures: Sequence[Picture]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f"<title>reprise simulate</title><style>{_STYLE}</style></head><body>"
    yield "<h1>What another policy would have done</h1>"
    for trace in document.traces:
        for sentence in conclusion_of(document, trace):
            yield f"<p><strong>{escape(sentence)}</strong></p>"
    remaining = iter(pictures)
    for trace in document.traces:
        yield f"<h2>{escape(trace.name)}</h2><p>{escape(trace_line(trace))}</p>"
        if trace.session_hits is not None:
            yield f"<p>{escape(session_line(trace.session_hits))}</p>"
        for note in trace.notes:
            yield f'<p class="note">{escape(note)}</p>'
        for group, runs in groups_of(document, trace.name).items():
            yield f"<h3>{escape(group)}</h3>"
            yield f'<p class="small">{escape(setup_line(runs[0], group))}</p>'
            yield from _table(rows_of(group, runs, trace))
            if group == POLICIES_GROUP:
                items = "".join(f"<li>{escape(line)}</li>" for line in explanations_of(runs))
                yield f'<ul class="small">{items}</ul>'
            picture = next(remaining, None)
            if picture is not None:
                png = base64.b64encode(picture.png).decode()
                alt = escape(picture.title, quote=True)
                yield f'<img alt="{alt}" src="data:image/png;base64,{png}">'
    yield from (f'<p class="small">{escape(line)}</p>' for line in LEGEND)
    yield f'<p class="small">{escape(document.model)}</p>'
    yield f'<p class="small">Cost model: {escape(document.cost_model)}.</p>'
    yield "</body></html>"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "<table>"
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        kind = "over" if OVERLOADED in row else "best" if row[0].endswith(" *") else ""
        yield f'<tr class="{kind}">{cells}</tr>' if kind else f"<tr>{cells}</tr>"
    yield "</table>"
