"""Who behaves well beside an attack: two engines whose content is known, and a client that asks."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.load import Engine, Load
from tests.processes import Service, until

PROMPTS = 120
PAUSE_S = 0.003
FLOOR_MS = 250.0
"""Below it a ratio of two p99 tells of the machine, which other tests share: a few turns of its
scheduler, and of Python's lock, of 5 ms each."""
RATIO_MAX = 3.0
FEWEST = 100
ENOUGH_S = 15.0


def p99_ms(latencies_s: list[float]) -> float:
    return 1000 * sorted(latencies_s)[int(0.99 * len(latencies_s))]


class Neighbour:
    """One engine has all prompts and keeps them, and is asked for them all the time; the other one
    stores and evicts meanwhile, and is compared with the answers once all is quiet.

    Attributes:
        answers: how many were right; the first that is not ends the client.
    """

    def __init__(self, service: Service, seed: int) -> None:
        self._service = service
        self._keeping = Engine("keeping", gpu_blocks=8000, cpu_blocks=0)
        self._moving = Load(seed, [Engine("moving")])
        self._expected: list[tuple[bytes, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_until_stopped)
        self._latencies_s: list[float] = []
        self._failure: BaseException | None = None
        self.answers = 0

    @contextmanager
    def beside(self) -> Iterator["Neighbour"]:
        """Engines are followed and the client asks; ends both."""
        try:
            self._settle()
            self._moving.start()
            self._thread.start()
            yield self
        finally:
            self._stop.set()
            if self._thread.ident is not None:
                self._thread.join()
            self._moving.close()
            self._keeping.publisher.close()

    def _settle(self) -> None:
        for engine in (self._keeping, *self._moving.engines):
            status, answer = self._service.post("/register", engine.registration())
            assert status == 200, answer
        prompts = [Load.prompt(number) for number in range(PROMPTS)]
        for prompt in prompts:
            self._keeping.serve(prompt)
        for prompt in prompts:
            body = json.dumps({"model": "m", "block_size": 16, "token_ids": prompt}).encode()
            self._expected.append((body, self._keeping.cache.longest_held(prompt)))
        held = [longest for _, longest in self._expected]
        assert max(held) > 100
        until(
            lambda: [self._service.longest(one, "keeping") for one in prompts] == held,
            what="the answers before the attack",
            timeout_s=100,
        )

    def _ask_until_stopped(self) -> None:
        address = urlsplit(self._service.base_url)
        client = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
        try:
            while not self._stop.wait(PAUSE_S):
                body, expected = self._expected[self.answers % len(self._expected)]
                begin = time.perf_counter()
                client.request("POST", "/query", body, {"Content-Type": "application/json"})
                with client.getresponse() as answered:
                    content = answered.read()
                self._latencies_s.append(time.perf_counter() - begin)
                assert answered.status == 200, content
                found = json.loads(content)["default"]["keeping"]["longest_matched"]
                assert found == expected, f"expected {expected}, got: {found}"
                self.answers += 1
        except BaseException as error:  # noqa: BLE001 -- the test reports it
            self._failure = error
        finally:
            client.close()

    def measure(self, answers: int) -> float:
        """p99 of the next answers, in ms: as it is now. Fewer do where the machine is busy."""
        begin, asked_at = len(self._latencies_s), time.monotonic()

        def has_enough() -> bool:
            found = len(self._latencies_s) - begin
            return found >= answers or (found >= FEWEST and time.monotonic() - asked_at > ENOUGH_S)

        until(
            lambda: has_enough() or self._failure,
            what=f"{answers} answers",
            timeout_s=10 * ENOUGH_S,
        )
        self.check()
        return p99_ms(self._latencies_s[begin:])

    def begin(self) -> None:
        """What is asked from now on is beside the attack."""
        self._latencies_s = []

    def p99_ms(self) -> float:
        """Of the answers since `begin`."""
        return p99_ms(list(self._latencies_s))

    def check_p99(self, before_ms: float) -> None:
        """Whether answers since `begin` were right, and as soon as is bearable."""
        self.check()
        found_ms = self.p99_ms()
        print(f"p99 {found_ms:.1f} ms beside the attack, {before_ms:.1f} ms before")
        assert found_ms < max(RATIO_MAX * before_ms, FLOOR_MS)

    def check(self) -> None:
        """Whether the client was answered, and rightly."""
        if self._failure is not None:
            raise AssertionError(f"after {self.answers} right answers") from self._failure

    def check_once_quiet(self) -> None:
        """Both engines' blocks are what the answers say, and the answers say `exact` of both."""
        self._moving.stop()
        (moving,) = self._moving.engines

        def is_right() -> bool:
            return all(
                self._service.longest(prompt, "moving") == moving.cache.longest_held(prompt)
                for prompt in self._moving.sample()
            )

        until(is_right, what="the answers for the engine that stores and evicts", timeout_s=60)

        def is_exact() -> bool:
            status, answer = self._service.post(
                "/query?only=exact",
                {"model": "m", "block_size": 16, "token_ids": Load.prompt(8)},
            )
            return status == 200 and {"keeping", "moving"} <= answer.get("default", {}).keys()

        until(is_exact, what="answers that are exact", timeout_s=60)
