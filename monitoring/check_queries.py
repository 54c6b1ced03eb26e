"""Runs every query of the dashboard on a real Prometheus, and checks its alert rules.

    python monitoring/check_queries.py --prometheus http://127.0.0.1:9090

A query that is refused fails the check; so does a query without any series, unless all its metrics
are of a kind that only appears with its first event, or belong to the other form of Reprise.
"""

import argparse
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

DASHBOARDS: Final = Path(__file__).parent / "grafana" / "dashboards"
SOMETIMES: Final = frozenset(
    {
        "reprise_audit_dropped_total",  # with --audit
        "reprise_bridge_dropped_total",  # once something was dropped
        "reprise_bridge_lost_batches_total",  # the query asks for publishers that have lost some
        "reprise_ledger_batches_total",  # once a batch did not simply come
        "reprise_bridge_passed_over_total",  # once a pool sent what is about something else
        "reprise_worker_records_total",  # once the worker was given records
        "reprise_condition",  # once something is wrong
        "reprise_log_size_bytes",  # embedded
        "reprise_memory_pressure",  # where a bridge looks at a directory of memory segments
        "reprise_memory_segment_state",
        "reprise_kernel_blocks_total",  # once blocks were folded
        "reprise_http_requests_total",  # the query asks for answers other than 2xx
        "reprise_http_refused_total",  # once something was refused
        "reprise_http_bodies_refused_total",  # once a body was refused
    }
)
_METRIC: Final = re.compile(r"\b(?:reprise|process)_[a-z_]+\b|\bup\b")


def queries() -> Iterator[tuple[str, str]]:
    """Panel and PromQL, with Grafana's variables filled in."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"].replace("$__rate_interval", "1m")


def metrics(query: str) -> set[str]:
    """The names of the metrics that a query reads."""
    return set(_METRIC.findall(query))


def _get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def main(arguments: Sequence[str]) -> int:
    """Returns 1 where a query fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    base = parser.parse_args(arguments).prometheus.rstrip("/")
    failures = 0
    for panel, query in queries():
        answer = _get(f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        if answer["status"] != "success":
            outcome = f"REFUSED {answer['error']}"
        elif answer["data"]["result"]:
            series = answer["data"]["result"]
            outcome = f"ok {len(series)} series, the first: {series[0]['value'][1]}"
        else:
            outcome = "ok none yet" if metrics(query) <= SOMETIMES else "EMPTY"
        failures += not outcome.startswith("ok")
        print(f"{panel}: {query}\n    {outcome}")
    known = set(_get(f"{base}/api/v1/label/__name__/values")["data"]) | SOMETIMES
    for group in _get(f"{base}/api/v1/rules")["data"]["groups"]:
        for rule in group["rules"]:
            missing = metrics(rule["query"]) - known
            fine = rule["health"] == "ok" and not missing
            failures += not fine
            print(f"{rule['name']}: {rule['health']}, {rule['state']}", *sorted(missing))
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
