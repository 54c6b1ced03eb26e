"""The application hands the doctor what the gateway and the tokenizer have seen."""

from gateway.cache_reports import CACHE_UNSAID_MIN
from gateway.fleet import EngineTarget
from gateway.gateway import Gateway
from gateway.settings import GatewaySettings
from reprise.application import create_app
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.clock import REAL_CLOCK
from tests.fakes import AsgiClient, FakeTable, registration
from tokens.engine_questions import UNANSWERED_MIN
from tokens.tokenizer import Tokenizer


class NoEngines:
    """Nobody can be asked."""

    def of_model(self, model: str, tenant_id: str) -> tuple[()]:
        return ()

    async def post(self, *_: object, **__: object) -> None:
        raise AssertionError("there is no engine")


def test_the_doctor_knows_what_gateway_and_tokenizer_have_seen(table: FakeTable) -> None:
    table.add(registration("a", http_endpoint="http://a:8000"))
    router = Router(table, RoutingQueue(), LiveLoad())
    gateway = Gateway(GatewaySettings(), table, table, router)
    tokenizer = Tokenizer({}, NoEngines(), REAL_CLOCK)  # type: ignore[arg-type]
    app = create_app(table, table, router=router, gateway=gateway, tokenizer=tokenizer)
    client = AsgiClient(app)

    def codes() -> set[str]:
        found = {one["code"] for one in client.get("/doctor").document()["findings"]}
        return found & {"cache_unsaid", "tokens_late"}

    assert codes() == set()
    target = EngineTarget(("a", 0), "http://a:8000", "combined", False, "vLLM")
    for _ in range(CACHE_UNSAID_MIN):
        gateway.placer.cache_reports.note(target, 16, None)
    for _ in range(UNANSWERED_MIN):
        tokenizer.questions.note("default", "m", REAL_CLOCK.unix(), is_answered=False)
    assert codes() == {"cache_unsaid", "tokens_late"}
