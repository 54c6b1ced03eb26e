import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.engines.control import RequestError
from lab.engines.parent_watch import ParentWatch, ProcessIdentity, identify

WAIT_S = 20.0


@contextmanager
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that runs until it is told to end; it is not reaped before the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def end_unreaped(started: "subprocess.Popen[bytes]") -> None:
    started.kill()
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)


def no_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    return ended.pid


def lasting(watch: ParentWatch) -> threading.Thread:
    thread = threading.Thread(target=watch.wait, daemon=True)
    thread.start()
    return thread


def test_a_process_is_known_until_it_ends_even_where_nobody_reaps_it() -> None:
    with process() as started:
        known = identify(started.pid)
        assert known is not None
        assert known.alive
        end_unreaped(started)
        assert not known.alive
        assert identify(started.pid) is None


def test_a_number_that_another_process_has_now_is_not_the_same_process() -> None:
    assert not ProcessIdentity(os.getpid(), "some other start").alive


def test_a_name_with_brackets_and_spaces_does_not_confuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = " ".join(["S", *map(str, range(4, 60))])
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: f"12 (a) Z (b) {fields}\n")
    assert identify(12) == ProcessIdentity(12, "22")


def test_an_engine_ends_at_once_with_its_parent() -> None:
    with process() as parent:
        watch = ParentWatch(parent.pid, poll_s=0.01)
        thread = lasting(watch)
        end_unreaped(parent)
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_orphan_goes_on_until_it_is_stopped_within_its_grace() -> None:
    orphaned = threading.Event()
    watch = ParentWatch(no_pid(), orphan_grace_s=1000, when_orphaned=orphaned.set, poll_s=0.01)
    thread = lasting(watch)
    assert orphaned.wait(WAIT_S)
    assert thread.is_alive()
    watch.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_orphan_ends_when_its_grace_is_over() -> None:
    thread = lasting(ParentWatch(no_pid(), orphan_grace_s=0.05, poll_s=0.01))
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_an_adopted_engine_ends_with_its_new_parent() -> None:
    with process() as adopter:
        orphaned = threading.Semaphore(0)
        watch = ParentWatch(
            no_pid(), orphan_grace_s=1000, when_orphaned=lambda: orphaned.release(), poll_s=0.01
        )
        thread = lasting(watch)
        assert orphaned.acquire(timeout=WAIT_S)
        watch.adopt(adopter.pid)
        watch.adopt(adopter.pid)
        with pytest.raises(RequestError, match=f"has a parent: {adopter.pid}"):
            watch.adopt(os.getpid())
        end_unreaped(adopter)
        assert orphaned.acquire(timeout=WAIT_S)
        watch.adopt(os.getpid())
        watch.stop()
        thread.join(WAIT_S)


def test_adoption_is_refused_while_the_parent_lives() -> None:
    with process() as another:
        watch = ParentWatch(os.getpid())
        with pytest.raises(RequestError, match=f"has a parent: {os.getpid()}"):
            watch.adopt(another.pid)


def test_adoption_by_no_process_or_of_one_that_ends_is_refused() -> None:
    gone = no_pid()
    watch = ParentWatch(gone)
    with pytest.raises(RequestError, match="Expected a living process"):
        watch.adopt(gone)
    watch.stop()
    with pytest.raises(RequestError, match="about to end"):
        watch.adopt(os.getpid())


def test_routes_adopt_and_stop() -> None:
    watch = ParentWatch(no_pid(), poll_s=0.01, orphan_grace_s=1000)
    thread = lasting(watch)
    routes = watch.routes()
    routes["POST", "/adopt"](b'{"pid": %d}' % os.getpid())
    routes["POST", "/stop"](b"")
    thread.join(WAIT_S)
    assert not thread.is_alive()
