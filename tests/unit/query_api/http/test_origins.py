"""A page that somebody has open cannot change what is registered."""

import msgspec
import pytest

from tests.fakes import AsgiClient

FIELDS = {
    "endpoint": "tcp://a:5557",
    "type": "vLLM",
    "modelname": "m",
    "instance_id": "a",
    "block_size": 4,
    "dp_rank": 0,
}
HOST = "127.0.0.1:13333"


@pytest.mark.parametrize(
    ("path", "content_type", "origin", "host"),
    [
        ("/register", "application/json", "http://evil.example", HOST),
        ("/register", "", "http://evil.example", HOST),
        ("/unregister", "text/plain;json", "http://evil.example", HOST),
        ("/register", "application/json", "http://127.0.0.1:8080", HOST),
        ("/register", "", "http://localhost:13333", HOST),
        ("/unregister", "text/plain;json", "null", HOST),
        ("/register", "application/json", "http://[::1", HOST),
        ("/register", "", "http://", ""),
        ("/unregister", "text/plain;json", "http://evil.example:13333", "evil.example:13333"),
    ],
)
def test_a_page_of_somebody_elses_changes_nothing(
    client: AsgiClient, path: str, content_type: str, origin: str, host: str
) -> None:
    headers = {"origin": origin, "host": host}
    if content_type:
        headers["content_type"] = content_type
    before = client.get("/services").document()
    reply = client.post(path, msgspec.json.encode(FIELDS), **headers)
    assert (reply.status, reply.document()["reason"]) == (403, "cross_site")
    assert origin in reply.document()["error"]
    assert client.get("/services").document() == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "reprise.example:13333"},
        {"origin": f"http://{HOST}", "host": HOST},
        {"origin": "http://[::1]:13333", "host": "[::1]:13333"},
        {"origin": "http://LOCALHOST:13333", "host": "localhost:13333"},
        {"origin": "http://serve-1:13333", "host": "serve-1:13333"},
    ],
)
def test_programs_and_pages_of_the_service_itself_register(
    client: AsgiClient, headers: dict[str, str]
) -> None:
    assert client.post_json("/register", FIELDS, **headers).status == 200


def test_questions_are_answered_whoever_asks(client: AsgiClient) -> None:
    """The browser keeps the answer from the page."""
    query = {"model": "m", "token_ids": [1, 2, 3, 4], "block_size": 4}
    headers = {"origin": "http://evil.example", "host": HOST}
    assert client.post_json("/query", query, **headers).status == 200
    assert client.get("/services", **headers).status == 200
