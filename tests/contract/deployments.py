"""The two forms of the whole service behind one interface, as processes.

    embedded   `reprise up`
    kafka      `reprise bridge`, `reprise streams` and `reprise serve` round a broker

Both outlive a test: each test is a tenant of its own in them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from brokers.broker_settings import KafkaSettings
from lab.engines.publisher import Publisher
from tests.processes import Api, Service, until
from tests.roles import Role

SESSION = ("--set", "kafka.session_timeout_s=2")
WAIT_S = 60.0
GRPC_TENANT = "routed"
ROUTER_OPTIONS = ("--grpc", "0", "--set", f"grpc.tenant={GRPC_TENANT}", "--conductor-rpc", "0")


class Subscribed(Protocol):
    """A publisher, or what stands before it, that counts its subscribers."""

    @property
    def endpoint(self) -> str: ...

    @property
    def subscribers(self) -> int: ...


def _conditions(health: dict[str, Any]) -> dict[str, str]:
    return {one["part"]: one["message"] for one in health.get("conditions") or ()}


class Deployment(Protocol):
    """What a test may know of a form."""

    @property
    def api(self) -> Api: ...

    @property
    def pool_links(self) -> int:
        """How often a pool is followed."""
        ...

    def followed(self, tenant_id: str) -> list[str]:
        """The endpoints of the tenant's publishers whose link is up."""
        ...

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the metric's samples with these labels, of the process that does the work."""
        ...

    def conditions(self) -> dict[str, str]:
        """What is wrong with the process that follows publishers: messages by part."""
        ...

    def restart(self, *, in_order: bool = False) -> None:
        """kill -9 of every process, or SIGTERM, and a start of each; returns once queries are
        answered.
        """
        ...

    def configured(self, config: Path, directory: Path) -> "Deployment":
        """One whose HTTP interface has been started with Conductor's configuration file."""
        ...

    @property
    def grpc(self) -> str:
        """Where it answers routers, HOST:PORT, about the publishers of `GRPC_TENANT`."""
        ...

    @property
    def conductor_rpc(self) -> str:
        """Where it answers clients of Conductor's RPC, HOST:PORT."""
        ...

    @property
    def memory(self) -> Path:
        """Where it looks for segments of memory."""
        ...

    def log(self) -> str:
        """What the processes have logged."""
        ...

    def events(self) -> list[str]:
        """Where the log of events is, as options of a command that reads it."""
        ...

    def close(self) -> None: ...


class Embedded:
    """See `Deployment`."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.memory = directory / "shm"
        options = (*memory_options(self.memory), *ROUTER_OPTIONS, *options)
        self._service = Service(directory / "data", *options)
        self._service.start()

    @property
    def api(self) -> Api:
        return self._service

    @property
    def pool_links(self) -> int:
        return 1

    @property
    def grpc(self) -> str:
        return _address(self._service.whole_log(), "gRPC")

    @property
    def conductor_rpc(self) -> str:
        return _address(self._service.whole_log(), "Conductor's RPC")

    def followed(self, tenant_id: str) -> list[str]:
        services = self.api.get("/services")[1]["services"]
        return [
            one["Endpoint"] for one in services if one["TenantID"] == tenant_id and one["Connected"]
        ]

    def metric(self, name: str, **labels: str) -> float:
        return self.api.metric(name, **labels)

    def conditions(self) -> dict[str, str]:
        return _conditions(self.api.get("/health")[1])

    def restart(self, *, in_order: bool = False) -> None:
        if in_order:
            self._service.stop()
            self._service.start()
        else:
            self._service.restart()

    def configured(self, config: Path, directory: Path) -> Deployment:
        return Embedded(directory, "--config", str(config))

    def log(self) -> str:
        return self._service.log()

    def events(self) -> list[str]:
        return ["--data", str(self._service.data)]

    def close(self) -> None:
        self._service.kill()


class Distributed:
    """See `Deployment`; one of each role, of which this one starts and ends those that are its."""

    def __init__(
        self, settings: KafkaSettings, *, bridge: Role, replica: Role, its: Sequence[Role]
    ) -> None:
        self._settings = settings
        self._bridge = bridge
        self._replica = replica
        self._its = its
        self.memory = bridge.data.with_name("shm")
        self._start()

    @classmethod
    def round(cls, settings: KafkaSettings, directory: Path) -> "Distributed":
        """A deployment on topics of its own."""
        options = memory_options(directory / "shm")
        bridge = Role("bridge", directory / "bridge", settings, *SESSION, *options)
        worker = Role("streams", directory / "streams", settings, *SESSION)
        replica = Role("serve", directory / "serve", settings, *ROUTER_OPTIONS)
        return cls(settings, bridge=bridge, replica=replica, its=[bridge, worker, replica])

    def _start(self) -> None:
        for role in self._its:
            role.start()
        until(self._replica.is_ready, what=f"readiness:\n{self.log()}", timeout_s=WAIT_S)

    @property
    def api(self) -> Api:
        return _api(self._replica)

    @property
    def pool_links(self) -> int:
        return self._settings.topics.events.partitions

    @property
    def grpc(self) -> str:
        return _address(self._replica.output(), "gRPC")

    @property
    def conductor_rpc(self) -> str:
        return _address(self._replica.output(), "Conductor's RPC")

    def followed(self, tenant_id: str) -> list[str]:
        return [
            one["registration"]["endpoint"]
            for one in self._bridge.get("/health")["publishers"]
            if one["registration"].get("tenant_id", "default") == tenant_id
            and one["connected"]
            and one["state"] == "live"
        ]

    def conditions(self) -> dict[str, str]:
        return _conditions(self._bridge.get("/health"))

    def metric(self, name: str, **labels: str) -> float:
        role = self._bridge if name.startswith("reprise_bridge_") else self._replica
        return _api(role).metric(name, **labels)

    def restart(self, *, in_order: bool = False) -> None:
        for role in self._its:
            if in_order:
                role.stop()
            else:
                role.kill()
        self._start()

    def configured(self, config: Path, directory: Path) -> Deployment:
        """A further replica of the same deployment."""
        options = ("--config", str(config))
        replica = Role("serve", directory / "serve", self._settings, *options)
        return Distributed(self._settings, bridge=self._bridge, replica=replica, its=[replica])

    def events(self) -> list[str]:
        prefix = self._settings.topic_prefix
        return ["--kafka", self._settings.bootstrap, "--topic-prefix", prefix]

    def log(self) -> str:
        return "\n".join(f"{role.name}:\n{role.output()[-4000:]}" for role in self._its)

    def close(self) -> None:
        for role in self._its:
            role.kill()


def _address(log: str, what: str) -> str:
    address: str = re.findall(rf"Answering {what} on (\S+)", log)[-1]
    return address


def memory_options(directory: Path) -> tuple[str, ...]:
    """Those by which segments are looked for in a directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    return (*("--set", f"memory.dir={directory}", "--set", "memory.host=node-1"),)


def _api(role: Role) -> Api:
    api = Api()
    api.base_url = role.base_url
    return api


class Tenant:
    """A test's own part of a deployment. Its engines run model `m` in blocks of 16, as instance
    `a` where nothing else is said.
    """

    def __init__(self, deployment: Deployment, tenant_id: str) -> None:
        self.deployment = deployment
        self.tenant_id = tenant_id

    @property
    def api(self) -> Api:
        return self.deployment.api

    def until(self, holds: Callable[[], object], what: str) -> None:
        try:
            until(holds, what=what, timeout_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.deployment.log()}") from error

    # Registrations

    def register(self, publisher: Publisher, **fields: object) -> tuple[int, dict[str, Any]]:
        body = {
            "endpoint": publisher.endpoint,
            "type": "vLLM",
            "modelname": "m",
            "instance_id": "a",
            "block_size": 16,
            "dp_rank": publisher.dp_rank,
            "tenant_id": self.tenant_id,
        }
        return self.api.post("/register", body | fields)

    def connect(self, *publishers: Publisher, **fields: object) -> None:
        """Registers the publishers, one after the other, and waits for their links."""
        for publisher in publishers:
            status, answer = self.register(publisher, **fields)
            assert status == 200, answer
        self.await_links(*publishers)

    def await_links(self, *publishers: Subscribed) -> None:
        wanted = {publisher.endpoint for publisher in publishers}
        self.until(
            lambda: wanted <= set(self.deployment.followed(self.tenant_id)),
            f"links to {sorted(wanted)}",
        )
        # The link is up before the subscription has reached the publisher.
        self.until(lambda: all(one.subscribers > 0 for one in publishers), "their subscriptions")

    def unregister(self, **fields: object) -> tuple[int, dict[str, Any]]:
        body = {"instance_id": "a", "dp_rank": 0, "tenant_id": self.tenant_id}
        return self.api.post("/unregister", body | fields)

    def services(self) -> list[dict[str, Any]]:
        status, answer = self.api.get("/services")
        assert status == 200, answer
        assert answer["count"] == len(answer["services"])
        return [one for one in answer["services"] if one["TenantID"] == self.tenant_id]

    def findings(self, kind: str = "findings") -> dict[str, list[dict[str, Any]]]:
        """What `GET /doctor` finds, by instance; or has notes of."""
        status, answer = self.api.get("/doctor")
        assert status == 200, answer
        found: dict[str, list[dict[str, Any]]] = {}
        for one in answer[kind]:
            if one["tenant_id"] == self.tenant_id:
                found.setdefault(one["instance_id"], []).append(one)
        return found

    def await_finding(
        self, code: str, instance_id: str = "a", kind: str = "findings"
    ) -> dict[str, Any]:
        """The finding, or the note, once it is there."""
        found: list[dict[str, Any]] = []

        def is_found() -> bool:
            of_instance = self.findings(kind).get(instance_id, [])
            found[:] = [one for one in of_instance if one["code"] == code]
            return bool(found)

        self.until(is_found, f"the finding {code} of {instance_id}")
        return found[0]

    def examined(self) -> list[dict[str, Any]]:
        """What `GET /doctor` says of each instance."""
        status, answer = self.api.get("/doctor")
        assert status == 200, answer
        return [one for one in answer["instances"] if one["tenant_id"] == self.tenant_id]

    def leave(self) -> None:
        """Forgets all that the test registered: its addresses may become those of another."""
        for one in self.services():
            self.unregister(instance_id=one["InstanceID"], dp_rank=one["DPRank"])

    # Answers

    def query(self, tokens: Sequence[int], **fields: object) -> dict[str, Any]:
        return self.api.query(tokens, **{"tenant_id": self.tenant_id, **fields})

    def longest(self, tokens: Sequence[int], instance_id: str = "a", **fields: object) -> int:
        found: int = self.query(tokens, **fields).get(instance_id, {}).get("longest_matched", -1)
        return found

    def await_longest(self, tokens: Sequence[int], matched: int, **fields: Any) -> None:
        self.until(lambda: self.longest(tokens, **fields) == matched, f"a match of {matched}")

    def await_candidate(self) -> None:
        """Waits until a decision knows an engine that can be reached: a moment after its link."""
        asked = {"model": "m", "block_size": 16, "token_ids": [1], "tenant_id": self.tenant_id}
        dry = asked | {"reserve": False}
        self.until(lambda: self.api.post("/route", dry)[0] == 200, "a link to its engine")

    def state(self) -> str:
        """How far an answer says that it can be trusted."""
        return self.headers()["reprise-state"]

    def position(self) -> str:
        """How much of the log an answer knows."""
        return self.headers()["reprise-position"]

    def headers(self) -> dict[str, str]:
        fields = {"model": "m", "block_size": 16, "token_ids": [1], "tenant_id": self.tenant_id}
        status, _, headers = self.api.exchange("/query", fields)
        assert status == 200
        return dict(headers)

    def gaps(self) -> dict[str, Any]:
        """The last incarnation of the only publisher, as the gap ledger has it."""
        status, answer = self.api.get(f"/gaps?tenant_id={self.tenant_id}")
        assert status == 200, answer
        if not answer["publishers"]:
            return {"last_sequence": -1}
        [publisher] = answer["publishers"]
        found: dict[str, Any] = publisher["incarnations"][-1]
        return found

    def await_batches(self, count: int) -> dict[str, Any]:
        """Waits until the ledger has so many; returns `gaps`."""
        self.until(lambda: self.gaps()["last_sequence"] == count - 1, f"{count} batches")
        return self.gaps()

    def digests(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Digest and entries, by model and instance."""
        return {
            (one["model_name"], one["instance_id"]): (one["digest"], one["entries"])
            for one in self.api.digest()["contexts"]
            if one["tenant_id"] == self.tenant_id
        }

    def metric(self, name: str, **labels: str) -> float:
        return self.deployment.metric(name, tenant=self.tenant_id, **labels)


@contextmanager
def tenant_of(deployment: Deployment, tenant_id: str) -> Iterator[Tenant]:
    tenant = Tenant(deployment, tenant_id)
    yield tenant
    tenant.leave()
