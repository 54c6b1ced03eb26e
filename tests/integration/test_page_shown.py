"""The live page in a real Chromium: that it fits, adds up, can be read, and leads from one thing to
the next.
"""

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser import Tab
from tests.page_fixtures import PROMPT, decide, engines
from tests.processes import Service, until

KOLKATA = 5.5  # hours east of Greenwich
DRAWN = "!!(window.reprise && reprise.summary && document.querySelector('[data-time-ticks]'))"
POLICIES = ("least-delay", "weighted", "blocks", "lmetric", "wait-and-work", "algorithm-1")

LONG = """
() => {
  const one = reprise.decisions[0];
  const chosen = { instance_id: "engine-of-a-long-name-0123456789", dp_rank: 11 };
  const outcome = { ...one.outcome, error: "out of memory ".repeat(20) };
  const long = { ...one, decision_id: "x-1", chosen, outcome, model_name: "model/".repeat(20),
    request_id: "r".repeat(200), policy: "weighted:alpha=0.5,beta=1", state: "unconfirmed",
    prompt_tokens: 1234567, promised_tokens: 1234567, ttft_ms: 123456.78 };
  reprise.hear({ event: "decisions", data: { decisions: [long], skipped: 0 } });
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
    const table = document.querySelector("table.lines"), scroll = table.parentElement;
    const last = [...table.querySelectorAll("th:last-child, td:last-child")];
    done({
      heights: [...table.tBodies[0].rows].map((row) => row.offsetHeight),
      room: scroll.clientWidth - scroll.scrollWidth,
      right: Math.max(...last.map((cell) => cell.getBoundingClientRect().right)),
      heads: [...table.tHead.rows[0].cells].map((cell) => cell.scrollWidth - cell.clientWidth),
    });
  })));
}"""
BARS = """
() => Object.fromEntries([...document.querySelectorAll(".of-three")].map((line) => {
  const track = line.querySelector(".track").getBoundingClientRect();
  const parts = [...line.querySelectorAll(".track span")].map((part) => {
    const box = part.getBoundingClientRect();
    return [part.dataset.term, box.width / track.width, (box.left - track.left) / track.width];
  });
  return [line.dataset.candidate, { parts, isChosen: line.classList.contains("is-chosen") }];
}))"""
POINTS_OF = """
(span) => {
  const now = reprise.summary.at, points = 360;
  reprise.block = () => {};
  reprise.history = Array.from({ length: points }, (_, place) => ({
    at: now - span + span * place / (points - 1), answers: 400 + place % 7,
    p50: 0.4, p99: 1.1, index: 0.9, promised: 0.91, actual: 0.9, lag: null }));
  reprise.dispatchEvent(new CustomEvent("news", { detail: "summary" }));
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(
    [...document.querySelectorAll(".charts .picture")].map((one) => ({
      times: one.dataset.timeTicks.split(" | "), values: one.dataset.valueTicks.split(" | "),
      plot: one.querySelector(".u-over").clientHeight / one.clientHeight,
      label: one.getAttribute("aria-label") }))))));
}"""
AWAY = """
() => {
  reprise.block = () => {};
  const since = Date.UTC(2026, 0, 5, 16, 1, 15) / 1000, level = "degraded";
  const conditions = [
    { part: "kafka", reason: "unreachable", message: "cannot use Kafka at k:9092", since, level },
    { part: "routing", reason: "unwritten", message: "the log is not written", since, level }];
  const lag = { table_records: 0, source_records: 0, seconds: 12, reachable: false };
  const health = { ...reprise.summary.health, role: "serve", lag, conditions };
  reprise.hear({ event: "summary", data: { ...reprise.summary, health } });
}"""
SIZE_OF = "(name) => parseFloat(getComputedStyle(document.querySelector(name)).fontSize)"

pytestmark = pytest.mark.timeout(240)


def cells(tab: Tab, selector: str) -> list[str]:
    found: list[str] = tab.page.locator(selector).all_text_contents()
    return found


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def clock(unix: float) -> str:
    there = timezone(timedelta(hours=KOLKATA))
    return datetime.fromtimestamp(int(unix), there).strftime("%H:%M:%S")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1440, "dark")])
def test_decisions_fit_with_one_line_a_row(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab], width: int, scheme: str
) -> None:
    tab = new_tab(of_size(3), viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.open("decisions")
    tab.page.wait_for_selector("table.lines [data-key]")
    found = tab.told(LONG)
    assert not tab.is_wider_than_the_window()
    assert len(found["heights"]) > 10
    assert max(found["heights"]) == min(found["heights"]) < 32, "a line has some 20 px"
    assert found["room"] == 0
    assert found["right"] <= width
    assert max(found["heads"]) <= 0, "no name of a column is cut off"


def test_the_bars_of_a_decision_add_up_to_its_keys_and_the_lowest_wins(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3), viewport={"width": 1280, "height": 900})
    for policy in POLICIES:
        check_bars(of_size(3), tab, policy)


def check_bars(service: Service, tab: Tab, policy: str) -> None:
    loads = [{"waiting": 0, "running": 1}, {"waiting": 9, "running": 20}, {"waiting": 3}]
    candidates = [{"instance_id": f"engine-{one}", "load": load} for one, load in enumerate(loads)]
    tokens = [*PROMPT[:32], *range(9000, 12000)]
    answer = decide(service, tokens, policy=policy, candidates=candidates)
    document = service.get(f"/decisions/{answer['decision_id']}")[1]
    keys: dict[str, float] = {one["instance_id"]: one["key"] for one in document["considered"]}
    terms = {one["instance_id"]: one["key_terms"] for one in document["considered"]}
    tab.open(f"decisions?id={answer['decision_id']}", "decisions")
    tab.page.wait_for_selector(f".verdict:has-text('{answer['prefill']['instance_id']} was')")
    bars = tab.told(BARS)
    assert set(bars) == set(keys)
    best = {each.pop("at best", 0.0) for each in terms.values()}
    assert len(best) == 1, "it is the same for all: bars begin there"
    room = max(sum(each.values()) for each in terms.values())
    for name, bar in bars.items():
        reached = min(best)
        for term, width, left in bar["parts"]:
            assert left * room == pytest.approx(reached - min(best), abs=5e-3 * room)
            assert width * room == pytest.approx(terms[name][term], abs=2e-3 * room)
            reached += width * room
        assert reached == pytest.approx(keys[name], abs=5e-3 * room)
    lengths = {name: sum(part[1] for part in bar["parts"]) for name, bar in bars.items()}
    chosen = answer["prefill"]["instance_id"]
    assert lengths[chosen] == min(lengths.values())
    assert [name for name, bar in bars.items() if bar["isChosen"]] == [chosen]
    assert keys[chosen] == min(keys.values())
    assert next(iter(bars)) == chosen
    assert f"{chosen} was chosen: its key, " in tab.page.inner_text(".verdict")


def test_charts_have_a_time_axis_that_a_person_reads(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    window: dict[str, Any] = {"width": 1280, "height": 900}
    tab = new_tab(of_size(3), viewport=window, timezone_id="Asia/Kolkata")
    most = {"Answers a second": 406, "Time of an answer": 1.1, "Hit rate": 100}
    minutes, seconds = r"\d\d:\d\d", r"\d\d:\d\d:\d\d"
    for span, shape in ((3600, minutes), (700, minutes), (45, seconds)):
        tab.open()
        tab.page.reload()
        until(lambda: tab.told(DRAWN), what="the charts are drawn")
        charts = tab.told(f"({POINTS_OF})({span})")
        now = tab.told("reprise.summary.at")
        assert len(charts) == 3
        for chart in charts:
            times, values = chart["times"], chart["values"]
            assert 3 <= len(times) == len(set(times)), times
            assert all(re.fullmatch(shape, text) for text in times), times
            local = {clock(now - span + second) for second in range(span + 1)}
            assert {text if len(text) > 5 else f"{text}:00" for text in times} <= local
            assert 3 <= len(values) == len(set(values)), values
            assert chart["plot"] > 0.7, "the rest is for the times"
            assert 0.6 < number(values[-1]) / most[chart["label"].split(" from")[0]] <= 1.06, values
            assert f"from {clock(now - span)} to" in chart["label"]


def test_charts_begin_before_the_page_was_opened(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3))

    def points_before() -> int:
        opened = time.time()
        tab.open()
        tab.page.reload()
        until(lambda: tab.told("!!(window.reprise && reprise.summary)"), what="it was told")
        found: int = tab.told(f"reprise.history.filter((one) => one.at < {opened}).length")
        return found

    until(lambda: points_before() >= 2, timeout_s=40.0, what="the service has two points")
    assert tab.told("reprise.history[0].answers") is not None
    tab.page.get_by_role("button", name="Table of: Answers a second").click()
    region = tab.page.get_by_role("region", name="Answers a second")
    assert region.get_by_role("row").count() >= 3


def test_three_figures_stand_out(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3), viewport={"width": 1280, "height": 900})
    tab.open()
    assert cells(tab, ".heroes dt") == ["Instances in doubt", "Hit rate", "p99"]
    hero, fact = (tab.told(f"({SIZE_OF})('{name}')") for name in (".heroes dd", ".facts dd"))
    assert hero > 2 * fact
    assert "Held of what was asked" not in tab.page.inner_text("main")


def test_kafka_away_is_a_red_banner_with_one_sentence(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    for scheme in ("light", "dark"):
        tab = new_tab(of_size(3), color_scheme=scheme, timezone_id="UTC")
        tab.open()
        banner = tab.page.locator("#connection")
        assert banner.get_attribute("role") == "status"
        tab.told(AWAY)
        assert banner.get_attribute("role") == "alert"
        assert banner.inner_text() == (
            "Kafka is away since 16:01:15:"
            " until it is back, answers are those of then and say “stale”."
        )
        colour = "getComputedStyle(document.getElementById('connection')).backgroundColor"
        assert tab.told(colour) == "rgb(179, 38, 30)"
        assert Axe().run(tab.page).violations_count == 0


def test_an_instance_a_decision_a_prefix_and_a_gap_lead_to_one_another(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    with Service(tmp_path / "data") as service:
        service.register("tcp://127.0.0.1:9", instance_id="away")
        engines(service, 3)
        for number in range(6):
            decide(service, [*PROMPT[:32], *range(number, number + 32)])
        chosen = service.get("/decisions?limit=1")[1]["decisions"][0]["chosen"]["instance_id"]
        tab = new_tab(service, viewport={"width": 1280, "height": 900})
        page = tab.page

        def follow(link: str, view: str, where: str) -> None:
            page.locator(where).get_by_role("link", name=link, exact=True).first.click()
            page.wait_for_selector(f'nav a[href="#{view}"][aria-current="page"]')

        tab.open()
        page.wait_for_selector(".cards li")
        follow(chosen, "overview", ".cards")
        page.wait_for_selector(f".chosen h3:has-text('{chosen}')")
        follow(f"decisions of {chosen}", "decisions", ".chosen")
        page.wait_for_selector("table.lines [data-key]")
        assert set(cells(tab, "table.lines td:nth-child(6)")) == {chosen}
        page.locator("table.lines [data-key]").first.click()
        page.wait_for_selector("section .of-three")
        follow("32", "prefixes", "section")
        pressed = page.locator('.icicle [aria-pressed="true"]')
        assert (pressed.get_attribute("aria-label") or "").startswith("32 tokens")
        follow("Decisions of prompts that begin with it", "decisions", "section")
        until(lambda: page.locator("table.lines [data-key]").count() == 6, what="they are shown")
        assert "those whose prompt begins with prefix" in page.inner_text(".only")
        page.locator(".only a").first.click()
        assert (pressed.get_attribute("aria-label") or "").startswith("32 tokens")
        page.go_back()
        follow(chosen, "overview", "table.lines")
        page.wait_for_selector(f".chosen h3:has-text('{chosen}')")
        tab.open("overview?instance=away", "overview")
        page.wait_for_selector(".chosen h3:has-text('away')")
        follow("gaps of away", "loss", ".chosen")
        page.wait_for_selector(".only")
        follow("away", "overview", ".only")
        page.wait_for_selector(".chosen h3:has-text('away')")
        follow("Close", "overview", ".chosen")
        until(lambda: page.locator(".chosen").count() == 0, what="it is closed")
        assert tab.complaints == []


def test_a_gap_leads_to_its_instance_and_the_decisions_of_that(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3))
    lost = {"batches": 2, "intervals": [{"first": 4, "last": 5, "batches": 2, "cause": "gone"}]}
    none = {"batches": 0, "intervals": []}
    incarnation = {"incarnation": 1, "reason": "", "began_at": 0, "first_sequence": 0}
    incarnation |= {"last_sequence": 9, "seen": {"batches": 8, "intervals": [[0, 3], [6, 9]]}}
    incarnation |= {"lost": lost, "repaired": none, "incomplete": none}
    publishers = [
        {"tenant_id": "default", "model_name": "m", "instance_id": name, "dp_rank": 0}
        | {"incarnations": [incarnation]}
        for name in ("engine-0", "engine-1")
    ]
    tab.page.route("**/gaps", lambda route: route.fulfill(json={"publishers": publishers}))
    tab.open("loss")
    tab.page.wait_for_selector("figure .line")
    assert tab.page.locator("figure .line").count() == 2
    tab.page.get_by_role("button", name="Table of: Batches").click()
    row = tab.page.get_by_role("row").filter(has_text="engine-1").filter(has_text="lost")
    row.get_by_role("link", name="default / m / engine-1 / rank 0").click()
    tab.page.wait_for_selector(".chosen h3:has-text('engine-1')")
    tab.page.get_by_role("link", name="gaps of engine-1").first.click()
    tab.page.wait_for_selector("figure .line")
    assert tab.page.locator("figure .line").count() == 1
    tab.page.locator(".line").get_by_role("link", name="decisions of engine-1").click()
    tab.page.wait_for_selector("h2:has-text('Decisions')")
    assert "Only those of engine-1" in tab.page.inner_text(".only")


def test_tables_sort_and_copy(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3), permissions=["clipboard-read", "clipboard-write"])
    tab.open()
    until(lambda: tab.told("reprise.rows.size") == 3, what="all instances are shown")
    tab.page.get_by_role("button", name="Table of: Instances").click()
    title = "Instances, the worst first"
    table = tab.page.get_by_role("region", name=title)
    names = f"[aria-label='{title}'] tbody td:first-child"
    head = table.get_by_role("columnheader", name="Instance", exact=True)
    assert head.get_attribute("aria-sort") == "none"
    rising = ["engine-0", "engine-1", "engine-2"]
    for sort, order in (("ascending", rising), ("descending", rising[::-1]), ("ascending", rising)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == sort
        assert cells(tab, names) == order
    number = table.get_by_role("columnheader", name="Publishers")
    number.get_by_role("button").click()
    assert number.get_attribute("aria-sort") == "descending"
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    tab.page.get_by_role("button", name=f"Copy: {title}").click()
    tab.page.wait_for_selector("text=3 instances copied")
    copied = tab.told("navigator.clipboard.readText()")
    lines = [line.split("\t") for line in copied.rstrip("\n").split("\n")]
    assert lines[0][:4] == ["Instance", "Tenant", "Models", "State"]
    assert {len(line) for line in lines} == {len(lines[0])}
    assert [line[:3] for line in lines[1:]] == [[name, "default", "m"] for name in rising]


def test_ask_offers_an_example_that_is_answered(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    tab = new_tab(of_size(3))
    tab.open("ask")
    tab.page.get_by_role("button", name="Example").click()
    tab.page.wait_for_selector("section:has-text('position 0:')")
    hashes = tab.page.locator("textarea").input_value().split()
    (scope,) = of_size(3).get("/prefixes")[1]["scopes"]
    assert hashes
    assert set(hashes) <= {one["prefix_hash"] for one in scope["prefixes"]}
    assert tab.page.locator("input[name=model]").input_value() == "m"
    with Service(tmp_path / "data") as service:
        tab = new_tab(service)
        tab.open("ask")
        tab.page.get_by_role("button", name="Example").click()
        tab.page.wait_for_selector("section .wrong:has-text('No instance is registered')")
        service.register("tcp://127.0.0.1:9", instance_id="a")
        tab.page.get_by_role("button", name="Example").click()
        tab.page.wait_for_selector("section:has-text('position 0:')")
        assert tab.page.locator("textarea").input_value().startswith("1 2 3 4 ")


def test_prefixes_begin_with_the_scope_of_which_most_is_held(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3))
    (scope,) = of_size(3).get("/prefixes")[1]["scopes"]
    mistyped, held = (
        scope
        | {"model_name": name, "prefixes": [one | {"replicas": held} for one in scope["prefixes"]]}
        for name, held in (("a-mistyped", 0), ("m", 1))
    )
    tab.page.route("**/prefixes?*", lambda route: route.fulfill(json={"scopes": [mistyped, held]}))
    tab.open("prefixes")
    tab.page.wait_for_selector(".icicle button")
    assert "m" in tab.page.locator("select").input_value().split(" / ")


def test_caches_are_not_said_to_be_none_before_the_page_knows(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3))
    tab.page.route("**/ui/events*", lambda route: None)  # it is never answered
    tab.page.goto(f"{of_size(3).base_url}/ui#caches")
    tab.page.wait_for_selector("main p:has-text('Connecting ...')")
    assert "No instances" not in tab.page.inner_text("main")
