"""Forks the processes that tests start from one that has imported the product already.

An interpreter that starts and imports a role takes 0.7 to 1.7 s of CPU, and a run starts hundreds.
With this plugin `subprocess.Popen` of `python -m MODULE ...` is a fork of the zygote, which takes
a hundredth of that: the child has the arguments, environment, working directory and files that it
was given, runs the module as `python -m` does, and ends as an interpreter ends. All else (other
programs, `-c`, a shell before it) is started as usual; with REPRISE_TEST_ZYGOTE=0 everything is.

    test process  --  socket: arguments, environment, files  -->  zygote  --  fork  -->  child
    test process  <--  a pipe for each child: its id, then its wait status  --  zygote

The zygote ends with the test process, and ends its children first. Forked processes share the hash
seed of the zygote, which a test of another seed starts with PYTHONHASHSEED.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, AnyStr, Final, NamedTuple, NoReturn

SWITCH: Final = "REPRISE_TEST_ZYGOTE"
PRELOADED: Final = (
    "reprise.cli.main",
    "reprise.cli.up",
    "reprise.cli.serve",
    "reprise.cli.bridge",
    "reprise.cli.streams",
    "reprise.demo",
    "reprise.roles.bridge",
    "reprise.roles.grpc_server",
    "reprise.roles.http_server",
    "reprise.roles.replay",
    "reprise.roles.relay",
    "reprise.roles.serve",
    "reprise.roles.streams",
    "reprise.roles.up",
    "lab.engines.engine",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
"""What the roles and commands import, lazily too. Nothing of it may start a thread."""

FORKED: Final = ("reprise", "lab.", "tests.fuzz.", "tests.lmcache")
"""What the names of modules begin with that are forked. Others may want to import for themselves,
as pytest does.
"""

_ROOT: Final = Path(__file__).resolve().parents[1]
_AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Variables that begin so are read before a program runs: where they differ, it is not forked."""

_INT: Final = struct.Struct("i")
_MESSAGE_MAX: Final = 200_000


class Job(NamedTuple):
    """What a child is to be.

    Attributes:
        arguments: after `python -m`.
        environment: all of it.
        directory: its working directory.
        session: whether it leads a session of its own.
    """

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    session: bool


class Zygote:
    """The process that forks, as the test process knows it; started when it is first needed.

    Attributes:
        read_at_start: the variables that it has read as it started.
    """

    def __init__(self) -> None:
        self.read_at_start = _read_at_start(os.environ)
        self._control: socket.socket | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def fork(self, job: Job, files: Iterable[int]) -> tuple[int, int]:
        """The id of a child that has these as its standard input, output and error, and a file from
        which its wait status can be read once it has ended.
        """
        with self._lock:
            if self._owner != os.getpid():  # this one is a fork itself
                self._start()
        assert self._control is not None
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps(job).encode()], [*files, writing])
        finally:
            os.close(writing)
        told = os.read(reading, _INT.size)
        assert told, "the zygote has ended: see its standard error"
        return _INT.unpack(told)[0], reading

    def _start(self) -> None:
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = _PlainPopen(
                [sys.executable, "-m", "tests.zygote", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # no terminal: buffered as a child's file is
                pass_fds=[its.fileno()],
                cwd=_ROOT,
                start_new_session=True,  # a Ctrl-C is for the tests, which end what they started
            )
        self._owner = os.getpid()

    def end(self) -> None:
        """Ends it, and whatever of its children still runs."""
        if self._control is not None and self._owner == os.getpid():
            self._control.close()
            self._process.wait()
        self._owner = 0


class ForkingPopen(subprocess.Popen[AnyStr]):
    """`subprocess.Popen` that has the zygote fork what it can. Private methods of the standard
    library are replaced, since files, encodings and `communicate` are to be exactly its own.
    """

    _status: int | None = None

    def _execute_child(self, args: Any, *others: Any) -> None:
        (_, preexec, _, pass_fds, cwd, env, _, _, shell) = others[:9]
        pipes = others[9:15]
        _, gid, gids, uid, umask, session, group = others[15:22]
        plain = preexec or pass_fds or shell or umask != -1 or group != -1
        owner = (gid, gids, uid) != (None, None, None)
        environment = dict(os.environ if env is None else env)
        command = args if isinstance(args, list | tuple) else [args]
        if plain or owner or not _is_forkable(command, environment):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        job = Job(
            [str(one) for one in command[2:]], environment, os.fspath(cwd or os.getcwd()), session
        )
        given = (pipes[0], pipes[3], pipes[5])
        files = [own if one < 0 else one for own, one in enumerate(given)]
        self.pid, self._status = _zygote.fork(job, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *args: Any, **names: Any) -> int | None:
        if self._status is None:
            found: int | None = super()._internal_poll(*args, **names)  # type: ignore[misc]
            return found
        lock: threading.Lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        if wait_flags & os.WNOHANG and not _is_readable(self._status):
            return 0, 0
        told = os.read(self._status, _INT.size)
        os.close(self._status)
        return self.pid, _INT.unpack(told)[0] if told else signal.SIGKILL


def _is_readable(file: int) -> bool:
    looked_at = select.poll()  # whatever its number is: `select` knows those below 1024
    looked_at.register(file, select.POLLIN)
    return bool(looked_at.poll(0))


def _is_forkable(command: Sequence[Any], environment: Mapping[str, str]) -> bool:
    if os.environ.get(SWITCH) == "0" or len(command) < 3:
        return False
    if (str(command[0]), command[1]) != (sys.executable, "-m"):
        return False
    if not str(command[2]).startswith(FORKED):
        return False
    return _read_at_start(environment) == _zygote.read_at_start


def _read_at_start(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {
        name: value for name, value in environment.items() if name.startswith(_AT_START)
    }
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    found["PYTHONPATH"] = [one for one in path if one not in ("", str(_ROOT))]  # ours is known
    return found


_zygote = Zygote()
_PlainPopen = subprocess.Popen


def pytest_configure() -> None:
    """Has all that this process starts from now on forked, where it can be."""
    subprocess.Popen = ForkingPopen  # type: ignore[misc]


def pytest_unconfigure() -> None:
    subprocess.Popen = _PlainPopen  # type: ignore[misc]
    _zygote.end()


# In the zygote


def serve(control: socket.socket) -> Job:
    """Forks for whoever asks, until it goes; then this process ends. Returns in each child."""
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}  # by child: where its wait status is to be written
    sources = select.poll()
    sources.register(control, select.POLLIN)
    sources.register(woken, select.POLLIN)
    while True:
        ready = {number for number, _ in sources.poll()}
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _reap(statuses)
        if control.fileno() in ready:
            message, files, _, _ = socket.recv_fds(control, _MESSAGE_MAX, 4)
            if not message:
                _end(statuses)
            pid = os.fork()
            if not pid:
                for number in (woken, wakes, *statuses.values()):
                    os.close(number)
                control.close()
                return _become(Job(*json.loads(message)), files)
            statuses[pid] = files[3]
            os.write(files[3], _INT.pack(pid))
            for number in files[:3]:
                os.close(number)


def _reap(statuses: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            to = statuses.pop(pid)
            with suppress(BrokenPipeError):  # whoever started it does not want to know
                os.write(to, _INT.pack(status))
            os.close(to)


def _end(statuses: Iterable[int]) -> NoReturn:
    for pid in statuses:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _become(job: Job, files: list[int]) -> Job:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if job.session:
        os.setsid()
    for number, given in enumerate(files[:3]):
        os.dup2(given, number)
    for given in files:
        os.close(given)
    if os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.directory)
    return job


def main() -> None:
    """Imports what there is to import and serves; in a child, runs what it is to be."""
    for name in PRELOADED:
        importlib.import_module(name)
    with suppress(FileNotFoundError):
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, "an import has started a thread, which no fork would have"
    gc.collect()
    gc.freeze()  # a child that collects garbage does not touch, and so copy, what it shares
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = job.arguments
    sys.modules.pop(job.arguments[0], None)  # it is to run as the main module
    runpy.run_module(job.arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
