"""What the chosen engine is told where it is to fetch a prefix: `kv.fetch@1.0`."""

from typing import Any

import pytest

from schemas.registration import Label
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route

POLICY = "algorithm-1"
SOURCE, TARGET = "tcp://10.0.0.1:24000", "tcp://10.0.0.2:24000"
BUSY = [{"instance_id": "a", "waiting": 9}, {"instance_id": "b", "waiting": 0}]


def labels(endpoint: str) -> tuple[Label, ...]:
    return (Label("kv_control_endpoint", endpoint),) if endpoint else ()


def fetching(
    service: Service, source: str = SOURCE, target: str = TARGET, **fields: Any
) -> dict[str, Any]:
    """The answer where `a` holds three blocks and is busy, and `b` holds one."""
    register(service, "a", blocks=3, labels=labels(source))
    register(service, "b", blocks=1, labels=labels(target))
    assert service.client.post_json("/load", BUSY).status == 202
    answer = route(service, policy=POLICY, **fields)
    assert answer["prefill"]["instance_id"] == "b"
    return answer


def test_it_names_the_blocks_as_their_holder_does(service: Service) -> None:
    answer = fetching(service)
    fetch, name = answer["prefill"]["fetch"], answer["decision_id"]
    assert (fetch["from"], fetch["tokens"]) == ("a", 32)
    assert fetch["kv_hints"] == {
        "protocol_version": "0.1",
        "message_id": name,
        "actions": [
            {
                "action_id": f"{name}-fetch",
                "action_type": "kv.fetch",
                "action_version": "1.0",
                "payload": {
                    "source_control_endpoint": SOURCE,
                    "block_hashes": [1, 2, 3],  # from the first one on, those of `b` included
                    "mode": "copy",
                },
            }
        ],
    }


@pytest.mark.parametrize(("source", "target"), [("", TARGET), (SOURCE, ""), ("", "")])
def test_both_have_to_say_where_blocks_are_asked_for(
    service: Service, source: str, target: str
) -> None:
    fetch = fetching(service, source, target)["prefill"]["fetch"]
    assert (fetch["tokens"], fetch["kv_hints"]) == (32, None)


def test_where_names_are_not_known_there_is_none(service: Service) -> None:
    """Only a decision says that `a` will hold the prompt, and no event has named its blocks."""
    for name, endpoint in (("a", SOURCE), ("b", TARGET)):
        register(service, name, labels=labels(endpoint))
    assert service.client.post_json("/load", list(reversed(BUSY[:1]))).status == 202
    first = route(service, candidates=[{"instance_id": "a"}])
    assert first["prefill"]["instance_id"] == "a"
    second = route(service, policy=POLICY)["prefill"]
    assert second["instance_id"] == "b"
    assert (second["fetch"]["tokens"], second["fetch"]["kv_hints"]) == (64, None)


def test_a_policy_that_does_not_fetch_tells_nothing(service: Service) -> None:
    fetching(service)
    assert route(service, policy=f"{POLICY}:fetch=off")["prefill"]["fetch"] is None


def test_the_rank_that_holds_it_is_the_source(service: Service) -> None:
    register(service, "a", blocks=3, labels=labels(SOURCE), dp_rank=1)
    register(service, "a", labels=labels("tcp://10.0.0.1:24999"))
    register(service, "b", labels=labels(TARGET))
    busy = [{"instance_id": "a", "dp_rank": rank, "waiting": 9} for rank in (0, 1)]
    assert service.client.post_json("/load", busy).status == 202
    hint = route(service, policy=POLICY)["prefill"]["fetch"]["kv_hints"]
    [action] = hint["actions"]
    assert action["payload"]["source_control_endpoint"] == SOURCE
    assert action["payload"]["block_hashes"] == [1, 2, 3]
