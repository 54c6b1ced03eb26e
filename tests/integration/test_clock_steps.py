"""The machine's own clock is set, forward and back, under a service that follows engines."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.processes import Service, until

PERIOD_S = 0.1
BATCHES = 30
"""After which a step must be forgotten; it was, after some 2,000."""

# Loaded before libc: what it says of CLOCK_REALTIME is off by the nanoseconds in a file.
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *off_ns;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_OFF_NS"), O_RDONLY);
    void *found = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    off_ns = found == MAP_FAILED ? 0 : found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && off_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_sec * 1000000000LL + now->tv_nsec + *off_ns;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or os.uname().sysname != "Linux", reason="no C compiler for the shim"
)


class Clock:
    """The wall clock of the processes that run with `environment`."""

    def __init__(self, directory: Path) -> None:
        source, shim = directory / "clock.c", directory / "clock.so"
        source.write_text(SHIM)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
        self._off = directory / "off_ns"
        self.step_to(0.0)
        self.environment = {"LD_PRELOAD": str(shim), "CLOCK_OFF_NS": str(self._off)}

    def step_to(self, off_s: float) -> None:
        """It is so much ahead from here on."""
        off_ns = round(off_s * 1e9)
        descriptor = os.open(self._off, os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, off_ns.to_bytes(8, "little", signed=True), 0)
        os.close(descriptor)


class Senders:
    """A publisher with a replay socket and one without, which send all the time."""

    def __init__(self) -> None:
        replays = ("tcp://127.0.0.1:0", "")
        self.publishers = [Publisher(PublisherOptions(replay_endpoint=one)) for one in replays]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._ending.wait(PERIOD_S):
            number += 1
            block = BlockStored(
                block_hashes=[number], token_ids=[number] * 16, block_size=16, medium="GPU"
            )
            for publisher in self.publishers:
                publisher.publish([block])

    def published(self) -> int:
        """Batches of the one that has sent less."""
        return min(publisher.published for publisher in self.publishers)

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        for publisher in self.publishers:
            publisher.close()


@pytest.fixture
def senders() -> Iterator[Senders]:
    opened = Senders()
    yield opened
    opened.close()


def test_a_step_of_the_own_clock_makes_no_publisher_doubted(
    tmp_path: Path, senders: Senders
) -> None:
    clock = Clock(tmp_path)
    with Service(tmp_path / "data", environment=clock.environment) as service:
        for number, publisher in enumerate(senders.publishers):
            service.register(
                publisher.endpoint,
                instance_id=f"w-{number}",
                replay_endpoint=publisher.replay_endpoint,
            )
        until(lambda: all(one.subscribers for one in senders.publishers), what="subscriptions")
        senders.start()

        def reasons() -> set[str]:
            services = service.get("/services")[1]["services"]
            return {f"{one['State']} {one['Reason']}".strip() for one in services}

        until(lambda: reasons() == {"exact"}, what="exact answers")
        for off_s in (3.0, 0.0, -3.0, 3600.0, -86_400.0):
            clock.step_to(off_s)
            goal = senders.published() + BATCHES
            until(lambda goal=goal: senders.published() >= goal, what="batches")  # type: ignore[misc]
            what = f"exact {off_s:+g} s off, not {reasons()}"
            until(lambda: reasons() == {"exact"}, what=what, timeout_s=20)
        assert service.metric("reprise_bridge_lost_batches_total") == 0
