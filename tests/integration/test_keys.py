"""Keys, with real processes: made by the command line, asked for on every socket, reread."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from reprise.cli.main import main
from tests.processes import Service, until
from tests.router_protos import PACKED

QUERY = b'{"model":"m","block_size":4,"token_ids":[1,2,3,4]}'
MATCH = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"


def reprise(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "reprise", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


def made(path: Path, key_id: str, *options: str) -> str:
    done = reprise("keys", "add", "--file", str(path), key_id, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Asked:
    """A service, asked with a key."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def status(self, key: str, path: str = "/query", **headers: str) -> int:
        given: Mapping[str, str] = headers or ({"Authorization": f"Bearer {key}"} if key else {})
        if path == "/query":
            content = {"Content-Type": "application/json"}
            return self.service.request("POST", path, QUERY, content | dict(given))[0]
        return self.service.request("GET", path, None, given)[0]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def operator(keys: Path) -> str:
    return made(keys, "ops", "--right", "admin")


@pytest.fixture
def asked(tmp_path: Path, keys: Path, operator: str) -> Iterator[Asked]:
    """On all addresses of this machine, as it may with keys, asked over loopback."""
    options = ("--keys", str(keys), "--host", "0.0.0.0", "--grpc", "127.0.0.1:0")
    with Service(tmp_path / "data", *options) as service:
        yield Asked(service)


def test_keys_are_made_revoked_and_reread_while_it_runs(
    asked: Asked, keys: Path, operator: str
) -> None:
    assert asked.status("") == 401
    assert asked.status("rk_ops_not-the-secret") == 401
    assert asked.status(operator) == 200
    name = base64.b64encode(f"anybody:{operator}".encode()).decode()
    assert asked.status("", "/docs", Authorization=f"Basic {name}") == 200
    assert asked.status("", "/docs") == 401
    assert asked.status("", "/ready") == 200
    router = made(keys, "router-1", "--right", "query", "--expires", "90d", "--rate", "1000")
    until(lambda: asked.status(router) == 200, what="the new key to be known", timeout_s=10)
    assert asked.status(router, "/services") == 403
    whole = keys.read_bytes()
    keys.write_bytes(whole[:-30])
    until(lambda: unreadable(asked, operator) == 1, what="the damage to be told", timeout_s=10)
    assert asked.status(router) == 200
    keys.write_bytes(whole)
    until(lambda: unreadable(asked, operator) == 0, what="the repair to be told", timeout_s=10)
    done = reprise("keys", "revoke", "--file", str(keys), "router-1")
    assert done.returncode == 0
    until(lambda: asked.status(router) == 401, what="the revoked key's end", timeout_s=10)
    assert asked.status(operator) == 200
    said = asked.service.whole_log()
    for key in (operator, router):
        assert key.split("_", 2)[2] not in said  # a secret may have one of its own
        assert key.encode() not in keys.read_bytes()
    assert asked.service.first_traceback() == ""


def unreadable(asked: Asked, key: str) -> float:
    body = asked.service.request("GET", "/metrics", None, {"Authorization": f"Bearer {key}"})[1]
    (line,) = [one for one in body.decode().splitlines() if one.startswith("reprise_keys_unread")]
    return float(line.split()[1])


def test_commands_ask_with_the_key_of_the_environment(asked: Asked, operator: str) -> None:
    url = asked.service.base_url.replace("0.0.0.0", "127.0.0.1")
    for command in (("gaps",), ("get", "/promises"), ("get", "/ui/instances"), ("get", "/memory")):
        ask = partial(CliRunner().invoke, main, [*command, "--url", url])
        refused = ask(env={"REPRISE_KEY": ""})
        assert refused.exit_code != 0
        assert "set REPRISE_KEY" in refused.output
        found = ask(env={"REPRISE_KEY": operator})
        assert found.exit_code == 0, (command, found.output)


def test_grpc_asks_for_the_same_keys(asked: Asked, keys: Path, operator: str) -> None:
    stranger = made(keys, "acme", "--right", "query", "--tenant", "acme")
    reader = made(keys, "reader", "--right", "read")
    log = asked.service.whole_log()
    address = log.partition("Answering gRPC on ")[2].split()[0]
    message = PACKED.MatchExternalKvPrefixRequest(hashes=[1]).SerializeToString()

    def code(*metadata: tuple[str, str]) -> str:
        with grpc.insecure_channel(address) as channel:
            call: Any = channel.unary_unary(MATCH)
            try:
                call(message, timeout=20, metadata=metadata)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    def with_key(key: str) -> str:
        return code(("authorization", f"Bearer {key}"))

    assert code() == "UNAUTHENTICATED"
    assert with_key("rk_ops_not-the-secret") == "UNAUTHENTICATED"
    until(lambda: with_key(reader) == "PERMISSION_DENIED", what="the new keys", timeout_s=10)
    assert with_key(stranger) == "PERMISSION_DENIED"  # gRPC asks about the tenant `default`
    assert with_key(operator) == "OK"


def test_by_default_nothing_is_open_beyond_loopback(tmp_path: Path) -> None:
    """What the system says of the process's sockets, of all that it can be asked to open."""
    options = ("--grpc", "0", "--set", "routing.select_service=true", "--lmcache", "127.0.0.1")
    with Service(tmp_path / "data", *options) as service:
        assert service.process is not None
        found = listening(service.process.pid)
        assert len(found) >= 3
        assert all(ip_address(one).is_loopback for one in found), found


def listening(pid: int) -> list[str]:
    """The addresses on which a process listens."""
    inodes: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                words = bytes.fromhex(fields[1].partition(":")[0])
                raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ip_address(raw)
                found.append(str(getattr(address, "ipv4_mapped", None) or address))
    return found
