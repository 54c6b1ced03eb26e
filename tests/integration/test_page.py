"""The live page in a real Chromium: what it shows is what the API answers."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Route

from tests.browser import Tab
from tests.integration.test_keys import made
from tests.page_fixtures import engines
from tests.processes import Service, until

VIEWS = ("overview", "caches", "prefixes", "loss", "decisions", "memory", "ask")
SIZES = {
    "wide": (1280, 900, "light"),
    "wider": (1440, 900, "dark"),
    "twice as large": (640, 400, "dark"),
    "small": (400, 800, "light"),
}

SECONDS = """
async (number) => {
  const row = [...reprise.rows.values()][0];
  for (let second = 0; second < number; second++) {
    const summary = structuredClone(reprise.summary);
    summary.at += 1;
    summary.routing.decisions += 100;
    reprise.hear({ event: "summary", data: summary });
    const rows = [{ ...row, blocks: second }];
    reprise.hear({ event: "instances", data: { whole: false, gone: [], rows } });
    const decisions = Array.from({ length: 10 }, (_, one) => (
      { ...reprise.decisions[0], decision_id: `${summary.at}-${one}` }));
    reprise.hear({ event: "decisions", data: { decisions, skipped: 90 } });
    if (second % 50 === 0) await new Promise(requestAnimationFrame);
  }
}"""

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("count", "size"),
    [(0, "wider"), (3, "wide"), (3, "twice as large"), (1000, "small")],
)
def test_each_view_is_whole_and_accessible(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab], count: int, size: str
) -> None:
    width, height, scheme = SIZES[size]
    service = of_size(count)
    tab = new_tab(service, viewport={"width": width, "height": height}, color_scheme=scheme)
    axe = Axe()
    tab.open()
    until(lambda: tab.told("reprise.rows.size") == count, what="all instances are shown")
    for view in VIEWS:
        tab.open(view)
        tab.page.wait_for_timeout(700)  # what it asks for is there, and drawn
        if view == "decisions" and count:
            tab.page.get_by_role("link", name="Show decision").first.click()
            tab.page.wait_for_selector("section h3")
        tab.page.keyboard.press("t")
        assert tab.page.locator('.as-table[aria-expanded="false"]').count() == 0, view
        assert not tab.is_wider_than_the_window(), view
        found = axe.run(
            tab.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
        )
        assert found.violations_count == 0, f"{view}: {found.generate_report()}"
    assert tab.complaints == []


def test_every_instance_is_in_the_table_behind_the_cards(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(1000))
    tab.open()
    until(lambda: tab.told("reprise.rows.size") == 1000, what="all instances are shown")
    tab.page.get_by_role("button", name="Table of: Instances").click()
    table = tab.page.get_by_role("region", name="Instances, the worst first")
    assert table.get_by_role("row").count() == 101
    for _ in range(9):
        tab.page.get_by_role("button", name="More").last.click()
    assert table.get_by_role("row").count() == 1001
    tab.page.get_by_label("Instances with").fill("engine-77")
    assert table.get_by_role("row").count() == 1 + 11  # 77 and 770 to 779


def test_its_numbers_are_those_of_the_api(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    service = of_size(3)
    tab = new_tab(service)
    tab.open()
    states = {one["InstanceID"]: one["State"] for one in service.get("/services")[1]["services"]}
    shown = tab.told(
        "Object.fromEntries([...reprise.rows.values()].map((one) => [one.instance_id, one.state]))"
    )
    assert shown == states
    text = tab.page.inner_text("dl.facts")
    decided = int(service.metric("reprise_routing_decisions_total"))
    assert re.search(rf"Decisions\n{decided:,}\n", text), text
    heroes = tab.page.inner_text("dl.heroes")
    doubt = sum(state != "exact" for state in states.values())
    assert re.search(rf"Instances in doubt\n{doubt}\nof 3: ", heroes), heroes
    tab.open("decisions")
    known = service.get("/decisions?limit=200")[1]["decisions"]
    tab.page.wait_for_selector(f"[data-key='{known[-1]['decision_id']}']")
    drawn = tab.told("[...document.querySelectorAll('[data-key]')].map((one) => one.dataset.key)")
    assert drawn == [one["decision_id"] for one in known]
    assert "Earlier ones are in the routing log" in tab.page.inner_text("main")
    tab.page.locator(f"[data-key='{known[0]['decision_id']}']").click()
    tab.page.wait_for_selector("section h3")
    detail = tab.page.inner_text("section")
    assert known[0]["decision_id"] in detail
    assert f"Promised cached\n{known[0]['promised_tokens']} (" in detail
    assert "Actually cached\n16 (25.0 %)" in detail
    assert "TTFT actual\n12 ms" in detail
    tab.open("prefixes")
    (scope,) = service.get("/prefixes?hot=500")[1]["scopes"]
    tab.page.wait_for_selector(".icicle button")
    tab.page.locator(".icicle button").first.click()
    tab.page.wait_for_selector("section h3")  # the address has led there
    hashes = {one["prefix_hash"]: one for one in scope["prefixes"]}
    detail = tab.page.inner_text("section")
    chosen = next(one for name, one in hashes.items() if name in detail)
    assert f"Asked\n{chosen['asked']}\n" in detail


def test_a_click_anywhere_on_a_row_opens_the_decision(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    service = of_size(3)
    body = {"model": "m", "block_size": 16, "token_ids": [9] * 64}
    name = service.post("/route", body)[1]["decision_id"]
    assert service.post("/feedback", {"decision_id": name, "event": "completed"})[0] == 202
    tab = new_tab(service)
    tab.open("decisions")
    row = tab.page.locator("tr", has=tab.page.locator(f"[data-key='{name}']"))
    until(lambda: "completed" in row.inner_text(), what="the outcome is shown")
    assert "not told" in row.inner_text(), "what is no stream has no first token"
    row.get_by_text("completed").click()
    tab.page.wait_for_selector("section h3")
    detail = tab.page.inner_text("section")
    assert f"Decision {name}," in detail
    assert "TTFT actual\nnot reported: only a stream has a first token to time" in detail
    row.locator("td").nth(5).get_by_role("link").click()
    tab.page.wait_for_selector(".chosen")
    assert tab.told("location.hash").startswith("#overview"), "a link of the row leads where it did"


def test_a_decision_by_load_says_so(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    """Decisions as the gateway leaves them whose engine did not say the tokens."""
    tab = new_tab(of_size(3))
    shown: dict[str, Any] = {}

    def answer(route: Route) -> None:
        response = route.fetch()
        document = response.json()
        for one in document.get("decisions", [document]):
            one.update(shown)
        route.fulfill(response=response, json=document)

    tab.page.route(re.compile(r"/decisions[?/]"), answer)
    for why, told, prompt in (
        ("engine_silent", "the index was not asked (engine_silent)", "about 64 tokens"),
        ("", "", "64 tokens"),
    ):
        shown["by_load"] = why
        tab.open("decisions")
        tab.page.get_by_role("link", name="Show decision").first.click()
        tab.page.wait_for_selector("section h3")
        text = tab.page.inner_text("section")
        assert re.search(rf"Prompt\n{prompt}\n", text), text
        assert told in text
        assert ("By load" in text) is bool(told)
        assert ("Promised cached\nthe index was not asked\n" in text) is bool(told)
        row = tab.page.locator("table.lines tbody tr").first
        until(lambda: ("by load: engine_silent" in row.inner_text()) is bool(told), what="a row")  # noqa: B023
        tab.page.get_by_role("link", name="Close").click()


def test_the_overview_shows_what_the_doctor_finds(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    with Service(tmp_path / "data") as service:
        service.register("tcp://127.0.0.1:9", instance_id="away")

        def codes() -> list[str]:
            return [one["code"] for one in service.get("/doctor")[1]["findings"]]

        until(lambda: codes() == ["unreached"], what="it is not reached")
        (finding,) = service.get("/doctor")[1]["findings"]
        tab = new_tab(service)
        tab.open()
        tab.page.wait_for_selector("#findings li")
        shown = tab.page.inner_text("#findings")
        assert "1 finding of the doctor:" in shown
        assert "unreached: default / m / away" in shown
        assert finding["cause"] in shown
        assert finding["remedy"] in shown
        assert Axe().run(tab.page).violations_count == 0
        body = {"instance_id": "away", "tenant_id": "default", "dp_rank": 0}
        assert service.post("/unregister", body)[0] == 200
        tab.open("loss")
        tab.open("overview")
        tab.page.wait_for_selector("#findings:has-text('nothing_registered')")


def test_a_question_is_answered_as_a_router_gets_it(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    service = of_size(3)
    tab = new_tab(service)
    tab.open("ask")
    body = '{"model": "m", "block_size": 16, "token_ids": [100, 101, 102, 103]}'
    tab.page.locator("textarea").fill(body)
    tab.page.get_by_role("button", name="Ask").click()
    tab.page.wait_for_selector("section p")
    assert "position 0:" in tab.page.inner_text("section")
    assert tab.page.locator("textarea").input_value() == "100, 101, 102, 103"
    for wrong, said in (
        ("1 2 x", "got: x"),
        ("", ""),
        ("{", "JSON"),
        ("1.5", "got: 1.5"),
        ("99999999999", "/query: 400"),
    ):
        tab.page.locator("textarea").fill(wrong)
        tab.page.get_by_role("button", name="Ask").click()
        if wrong:
            tab.page.wait_for_selector(f"section .wrong:has-text('{said}')")
    request = '{"model": "m", "prompt": [100, 101, 102, 103], "temperature": 1}'
    tab.page.locator("textarea").fill(request)
    tab.page.get_by_role("button", name="Ask").click()
    tab.page.wait_for_selector("section p:has-text('tokens given; count=4; reused=0')")
    tab.page.locator("select[name=as]").select_option("messages")
    tab.page.locator("textarea").fill("Hello")
    tab.page.get_by_role("button", name="Ask").click()
    tab.page.wait_for_selector("section .wrong:has-text('no tokens can be made of the text')")
    decided = service.get("/decisions?limit=1")[1]["decisions"][0]
    tab.page.get_by_label("Decision of a request").fill(decided["request_id"])
    tab.page.get_by_role("button", name="Find").click()
    tab.page.wait_for_selector(f"h3:has-text('{decided['decision_id']}')")


def test_a_service_that_is_gone_is_said_with_the_age_of_what_is_shown(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    with Service(tmp_path / "data", "--port", "0") as service:
        engines(service, 2)
        port = service.base_url.rpartition(":")[2]
    fixed = Service(tmp_path / "data", "--port", port)
    with fixed:
        tab = new_tab(fixed)
        tab.open()
        until(lambda: tab.told("reprise.rows.size") == 2, what="the instances are shown")
        assert tab.page.locator("#connection").get_attribute("class") in ("live", "waiting")
        fixed.kill()
        tab.page.wait_for_selector("#connection.lost")
        assert re.search(r"What is shown is \d+ s old", tab.page.inner_text("#connection"))
        assert tab.page.locator(".cards li").count() == 2, "the last that was known stays"
        fixed.start()
        engines(fixed, 3)
        tab.page.wait_for_selector("#connection:not(.lost)")
        until(lambda: tab.told("reprise.rows.size") == 3, what="the new instance is shown")


def test_a_stop_ends_streams_that_are_being_read_and_those_that_are_not(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    service = Service(tmp_path / "data")
    service.start()
    tab = new_tab(service)
    tab.open()
    port = int(service.base_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: service.metric("reprise_event_streams") == 2, what="both are open")
        assert service.stop() == 0, service.log()
    assert service.first_traceback() == ""


def test_tabs_of_a_browser_share_a_stream_and_the_next_one_goes_on(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab], browser: Browser
) -> None:
    service = of_size(3)
    until(lambda: service.metric("reprise_event_streams") == 0, what="no page is open")
    context = browser.new_context()
    first, second = new_tab(service, context), new_tab(service, context)
    first.open()
    second.open("decisions")
    until(lambda: second.told("reprise.rows.size") == 3, what="the second tab was told everything")
    assert service.metric("reprise_event_streams") == 1
    first.page.close()
    at = second.told("reprise.summary.at")
    until(lambda: second.told("reprise.summary.at") > at + 2, what="the second tab goes on")
    assert service.metric("reprise_event_streams") == 1
    context.close()


def test_views_open_by_keys_and_by_tab_but_not_while_something_is_typed(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    tab = new_tab(of_size(3))
    tab.open()
    for number, view in enumerate(VIEWS, 1):
        tab.page.keyboard.press(str(number))
        tab.page.wait_for_selector(f'nav a[href="#{view}"][aria-current="page"]')
    tab.page.locator("textarea").focus()
    tab.page.keyboard.press("1")
    assert tab.page.locator("textarea").input_value() == "1"
    tab.open()
    tab.page.reload()
    tab.page.wait_for_selector("dl.heroes dd")
    tab.page.keyboard.press("Tab")
    reached = []
    for _ in range(12):
        reached.append(tab.told("document.activeElement.textContent"))
        tab.page.keyboard.press("Tab")
    assert {"Overview", "Caches", "Prefixes", "Loss", "Decisions", "Memory", "Ask"} <= set(reached)
    tab.page.locator("#keys").uncheck()
    tab.page.keyboard.press("2")
    assert tab.page.locator('nav a[aria-current="page"]').inner_text() == "Overview"


def test_with_keys_a_tenant_sees_its_own_alone(
    tmp_path: Path, new_tab: Callable[..., Tab], browser: Browser
) -> None:
    keys = tmp_path / "keys.toml"
    admin = made(keys, "operator", "--right", "admin")
    acme = made(keys, "acme", "--right", "read", "--right", "query", "--tenant", "acme")
    with Service(tmp_path / "data", "--keys", str(keys)) as service:
        bearer = {"Authorization": f"Bearer {admin}", "Content-Type": "application/json"}
        for tenant in ("acme", "blue"):
            fields = {"type": "none", "modelname": "m", "block_size": 16, "dp_rank": 0}
            fields |= {"tenant_id": tenant, "instance_id": f"of-{tenant}"}
            body = json.dumps(fields).encode()
            assert service.request("POST", "/register", body, bearer)[0] == 200
        assert service.request("GET", "/ui")[0] == 401
        tab = new_tab(service, http_credentials={"username": "anybody", "password": acme})
        tab.open()
        until(lambda: tab.told("reprise.rows.size") == 1, what="its instance is shown")
        for view in VIEWS:
            tab.open(view)
            tab.page.wait_for_timeout(400)
            assert "blue" not in tab.page.content(), view
        assert "blue" not in tab.told("JSON.stringify([...reprise.rows])")
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(service.base_url.replace("//", f"//anybody:{acme}@") + "/ui")
            until(
                lambda: page.evaluate("reprise.rows.size") == 1, what="with the key in its address"
            )


def test_what_it_keeps_is_bounded(
    of_size: Callable[[int], Service], new_tab: Callable[..., Tab]
) -> None:
    """Three hours of a busy service in a moment: the heap is that of the first half hour."""
    tab = new_tab(of_size(3))
    tab.open()
    session = tab.page.context.new_cdp_session(tab.page)

    def heap_bytes() -> float:
        session.send("HeapProfiler.collectGarbage")
        used: float = session.send("Runtime.getHeapUsage")["usedSize"]
        return used

    def seconds_of(number: int) -> None:
        tab.told(f"({SECONDS})({number})")

    seconds_of(1800)
    before = heap_bytes()
    seconds_of(9000)
    assert heap_bytes() < before + 3e6
    assert tab.told("reprise.history.length") <= 900
    assert tab.told("reprise.decisions.length") <= 200
    assert tab.told("reprise.summaries.length") <= 62
    assert tab.told("reprise.rows.size") == 3
