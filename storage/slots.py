"""One directory for several processes of a kind: each takes the first part of it that no other has.

    DATA/slot-1         what the process that has it keeps
    DATA/slot-1.lock    locked by that process for as long as it lives, however it ends

So replicas that are all started alike, as by `docker compose up --scale`, share a volume and keep
apart what is theirs. Who comes back takes a part that is free, and goes on with what waits there.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final, NamedTuple

from schemas.errors import StorageError
from schemas.setting import Setting

SLOTS_MAX: Final = 256  # files that are tried as a role starts

SLOTS: Final = Setting(
    "slots",
    "Share --data with other processes of this role: take the first free one of its parts slot-1,"
    " slot-2, ..., of which there are so many; 0 for --data itself.",
    bounds=(0, SLOTS_MAX),
)


class Slot(NamedTuple):
    """A part that this process has.

    Attributes:
        number: from 1.
        lock: an open file, which frees the part where it is closed.
    """

    number: int
    path: Path
    lock: int


class DataPlace(NamedTuple):
    """What the settings `data` and `slots` come to.

    Attributes:
        path: what this process has for itself.
        shared: what it shares with those of its role.
        is_first: whether it does what one of them alone may do.
    """

    path: Path
    shared: Path
    is_first: bool


def take_place(data: Path, slots: int) -> DataPlace:
    """Takes it for as long as this process lives; 0 slots for the directory itself.

    Raises:
        StorageError: see `take_slot`.
    """
    if not slots:
        return DataPlace(data, data, is_first=True)
    slot = take_slot(data, slots)
    return DataPlace(slot.path, data, is_first=slot.number == 1)


def take_slot(data: Path, slots: int) -> Slot:
    """Takes the first part that no process has, until this one ends.

    Args:
        data: the directory of all; made where it is missing.
        slots: how many parts there are.

    Raises:
        StorageError: other processes have all of them, or the directory cannot be used.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        for number in range(1, slots + 1):
            path = data / f"slot-{number}"
            lock = lock_file(path.with_suffix(".lock"))
            if lock is not None:
                path.mkdir(exist_ok=True)
                return Slot(number, path, lock)
    except OSError as error:
        raise StorageError(f"Cannot take a part of {data}: {error}") from error
    raise StorageError(
        f"Expected one of the {slots} parts of {data} to be free, but other processes have them"
        " all. Stop one of these, or raise slots"
    )


def lock_file(path: Path) -> int | None:
    """Locks a file, which is made where it is missing, for as long as the result is open.

    Returns:
        The open file, or None while another process or another opening has it locked.

    Raises:
        OSError: it cannot be opened or locked.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return lock
