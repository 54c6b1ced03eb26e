"""The floor of a request: the service's web server around an app that answers `{}`.

`python -m lab.benchmarks.embedded.empty_server` prints its port. What `/query` costs beyond it is
Reprise's own; measured beside it in one run, it also tells how much the machine was disturbed.
"""

import socket

import uvicorn
from starlette.types import Receive, Scope, Send

from reprise.http.connections import Connections


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """The whole app."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = Connections().configure(answer)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
