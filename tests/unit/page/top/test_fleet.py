"""Documents of a service are joined by instance; those that cannot be had are named."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner

from page.top.fleet import ask_fleet
from reprise.application import create_app
from reprise.cli.main import main
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.identities import LEFT_OUT, REPEATED
from tests.fakes import AsgiClient, FakeTable


class Handler(BaseHTTPRequestHandler):
    client: ClassVar[AsgiClient]
    broken: ClassVar[dict[str, tuple[int, bytes]]]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.broken:
            status, body = self.broken[path]
        else:
            answer = self.client.get(self.path)
            status, body = answer.status, answer.body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    table = FakeTable()
    router = Router(table, RoutingQueue(), LiveLoad())
    Handler.client = AsgiClient(create_app(table, table, router=router))
    Handler.broken = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def register(**fields: object) -> None:
    given: dict[str, object] = {"type": "vLLM", "modelname": "m", "block_size": 16, "dp_rank": 0}
    answer = Handler.client.post_json("/register", given | fields)
    assert answer.status == 200, answer.body


def top(url: str, *arguments: str) -> Any:
    return CliRunner().invoke(main, ["top", "--url", url, *arguments])


def test_ranks_and_models_of_an_instance_are_one_row(url: str) -> None:
    register(endpoint="tcp://127.0.0.1:1", instance_id="a")
    register(endpoint="tcp://127.0.0.1:2", instance_id="a", dp_rank=1)
    register(endpoint="tcp://127.0.0.1:3", instance_id="a", modelname="n")
    register(endpoint="tcp://127.0.0.1:4", instance_id="a", tenant_id="other")
    found = ask_fleet(url)
    assert [(row.tenant_id, row.instance_id, row.publishers) for row in found.instances] == [
        ("default", "a", 3),
        ("other", "a", 1),
    ]
    assert found.instances[0].models == ["m", "n"]
    assert found.missing == {}
    assert found.instances[0].blocks == 0


def test_what_no_answer_counts_is_no_block_of_an_instance(url: str) -> None:
    """A block that was announced again without a medium, which may be a copy, counted twice."""
    register(endpoint="tcp://127.0.0.1:1", instance_id="a")
    names = {"tenant_id": "default", "model_name": "m", "block_size": 16, "additional_salt": ""}
    digest = json.loads(Handler.client.get("/digest").body)
    digest["contexts"] = [
        names | {"lora_name": lora, "instance_id": "a", "digest": "0" * 16, "entries": 3}
        for lora in ("", REPEATED, f"{LEFT_OUT}unresolved")
    ]
    Handler.broken = {"/digest": (200, json.dumps(digest).encode())}
    assert ask_fleet(url).instances[0].blocks == 3


def test_a_document_that_cannot_be_had_is_named_and_the_rest_is_shown(url: str) -> None:
    register(endpoint="tcp://127.0.0.1:1", instance_id="a")
    Handler.broken = {
        "/gaps": (404, b'{"error":"no such route"}'),
        "/digest": (200, b"nonsense"),
        "/routing": (503, b'{"error":"not now"}'),
    }
    found = ask_fleet(url)
    assert set(found.missing) == {"/gaps", "/digest", "/routing"}
    assert "no such route" in found.missing["/gaps"]
    (row,) = found.instances
    assert (row.blocks, row.lost_batches, row.requests) == (None, None, None)
    shown = top(url, "--once").stdout
    assert "Not shown, for want of /gaps" in shown
    assert "default  a" in shown


def test_a_service_that_does_not_answer_is_said() -> None:
    with pytest.raises(click.ClickException, match="Is the service up"):
        ask_fleet("http://127.0.0.1:1")
    failed = top("http://127.0.0.1:1", "--once")
    assert failed.exit_code == 1
    failed = top("http://127.0.0.1:1", "--json", "--looks", "2", "-n", "0.25")
    assert failed.exit_code == 1
    assert failed.stderr.count("Is the service up") == 2


def test_json_has_a_line_a_look(url: str) -> None:
    register(endpoint="tcp://127.0.0.1:1", instance_id="a")
    lines = top(url, "--json", "--looks", "2", "-n", "0.25").stdout.splitlines()
    assert len(lines) == 2
    assert [one["instance_id"] for one in json.loads(lines[1])["instances"]] == ["a"]


def test_without_a_terminal_it_says_what_to_use(url: str) -> None:
    refused = top(url)
    assert refused.exit_code == 2
    assert "--once or --json" in refused.stderr
