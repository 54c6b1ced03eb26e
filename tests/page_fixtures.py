"""Services for tests of the live page, and tabs of a Chromium that show them."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.processes import Service

if TYPE_CHECKING:  # few suites have a browser
    from playwright.sync_api import Browser, BrowserContext

    from tests.browser import Tab

PROMPT: Final = list(range(100, 164))


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """For all tests of a module."""
    from tests.browser import opened_browser

    with opened_browser() as found:
        yield found


@pytest.fixture
def new_tab(browser: "Browser") -> Iterator[Callable[..., "Tab"]]:
    """Opens a tab of a browser of its own, or of one that is given."""
    from tests.browser import Tab

    contexts: list[BrowserContext] = []
    tabs: list[Tab] = []

    def make(service: Service, context: "BrowserContext | None" = None, **settings: Any) -> Tab:
        if context is None:
            context = browser.new_context(**settings)
            contexts.append(context)
        tabs.append(Tab(context, service.base_url))
        return tabs[-1]

    yield make
    for context in contexts:
        context.close()
    assert [address for tab in tabs for address in tab.elsewhere] == []


@pytest.fixture(scope="module")
def of_size(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Service]]:
    """A service with so many instances, of which some were chosen for requests."""
    services: dict[int, Service] = {}

    def make(count: int) -> Service:
        if count not in services:
            service = services[count] = Service(tmp_path_factory.mktemp("page") / "data")
            service.start()
            engines(service, count)
            for number in range(20 if count else 0):
                decide(service, [*PROMPT[:32], *range(number, number + 32)])
        return services[count]

    yield make
    for service in services.values():
        service.kill()


def engines(service: Service, count: int) -> None:
    """Engines without events: of these there may be many."""
    fields = {"type": "none", "modelname": "m", "block_size": 16, "dp_rank": 0}
    for number in range(count):
        status, answer = service.post("/register", fields | {"instance_id": f"engine-{number}"})
        assert status == 200, answer


def decide(service: Service, tokens: Sequence[int] = PROMPT, **fields: object) -> dict[str, Any]:
    """Has a prompt routed, and reports what became of it."""
    body = {"model": "m", "block_size": 16, "token_ids": list(tokens)} | fields
    status, answer = service.post("/route", body)
    assert status == 200, answer
    found: dict[str, Any] = answer
    report = {"decision_id": found["decision_id"], "event": "completed", "cached_tokens": 16}
    assert service.post("/feedback", report | {"ttft_ms": 12.0, "prompt_tokens": 64})[0] == 202
    return found
