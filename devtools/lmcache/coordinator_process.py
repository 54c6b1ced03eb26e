"""LMCache's own coordinator as a process, and what it answers. Needs LMCache 0.5.7 or later, and
nothing of ours.

    python coordinator_process.py PORT CHUNK_SIZE [FILE]

Each exchange is a line of the file: method, path, body, status and answer. So are the vectors made
that our coordinator is held against: run this, then `server_process.py` and whatever else asks.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import server_process  # type: ignore[import-not-found]  # beside this file


def _recorded(app: Any, path: str) -> Any:
    """The application, with its exchanges written down."""

    async def record(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        said: dict[str, Any] = {"body": b"", "status": 0, "answer": b""}

        async def receiving() -> Any:
            message = await receive()
            said["body"] += message.get("body", b"")
            return message

        async def sending(message: Any) -> None:
            said["status"] = message.get("status", said["status"])
            said["answer"] += message.get("body", b"")
            await send(message)

        await app(scope, receiving, sending)
        query = scope["query_string"].decode()
        line = {
            "method": scope["method"],
            "path": scope["path"] + (f"?{query}" if query else ""),
            "body": json.loads(said["body"]) if said["body"] else None,
            "status": said["status"],
            "answer": json.loads(said["answer"]) if said["answer"] else None,
        }
        _append(path, json.dumps(line, separators=(",", ":")))

    return record


def _append(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


def main() -> None:
    """Serves until it is killed."""
    import uvicorn

    port, chunk_size, *path = sys.argv[1:]
    server_process._load()  # noqa: SLF001
    own = "lmcache.v1.mp_coordinator"
    made = importlib.import_module(f"{own}.app")
    config = importlib.import_module(f"{own}.config")
    app: Any = made.create_app(
        config.MPCoordinatorConfig(
            chunk_size=int(chunk_size), metrics_enabled=False, eviction_check_interval=0
        )
    )
    uvicorn.run(
        _recorded(app, path[0]) if path else app, port=int(port), log_level="error", lifespan="on"
    )


if __name__ == "__main__":
    main()
