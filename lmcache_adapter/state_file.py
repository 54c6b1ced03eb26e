"""What one run of a bridge tells the next of LMCache's workers, in one small file.

    DATA/lmcache.json    {"incarnations": 1795000000000, "workers": [{"registration": ...}, ...]}

It is of version 1, which it does not say; a newer one says `version`, and is refused.

The log says that these workers are registered, and what they held. A run that knows nothing of them
could not end what is written of one that never comes back. A run that ends in order notes what is
where no full sync tells it, too.

Incarnations of a publisher must rise, whichever run begins them, and must be told at once, whether
the log can be read or not. So each run takes a range of its own: above that of the run before,
which is noted here before it is used, or from the milliseconds of the clock, where there is none.
"""

import logging
import os
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from lmcache_adapter.bounds import LMCACHE_WORKERS_MAX
from lmcache_adapter.controller.member import RememberedWorker
from schemas.codec import UNUSABLE, check_file_version
from schemas.errors import NewerVersionError, StorageError
from schemas.limits import INCARNATION_MAX, MIB
from storage.files import read_file
from storage.rocksdb import disk_errors

LMCACHE_STATE_BYTES_MAX: Final = 64 * MIB  # of the file that names the workers of the last run

_logger = logging.getLogger(__name__)

STATE_VERSION: Final = 1

RUN_INCARNATIONS: Final = 2**24
"""Of a publisher in one run; more take those of the next one, which then begins higher."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        incarnations: from which number on those of the run are.
    """

    incarnations: Annotated[int, Meta(ge=0, le=INCARNATION_MAX // 2)] = 0
    workers: tuple[RememberedWorker, ...] = ()


_decode: Final = msgspec.json.Decoder(State).decode


class StateFile:
    """The file in one data directory."""

    def __init__(self, data: Path, name: str = "lmcache.json") -> None:
        self.path = data / name

    def read(self) -> State:
        """The state of the last run; where there is none, or it cannot be read, an empty one.

        Raises:
            NewerVersionError: a newer Reprise wrote it.
        """
        try:
            content = read_file(self.path, LMCACHE_STATE_BYTES_MAX)
            check_file_version(content, "the state of LMCache's workers", STATE_VERSION, self.path)
            return _decode(content)
        except FileNotFoundError:
            return State()
        except NewerVersionError:
            raise
        except (OSError, StorageError, *UNUSABLE) as error:
            _logger.error(
                "Cannot read %s (%s): LMCache workers of the last run that do not come back stay"
                " registered until they are unregistered",
                self.path,
                error,
            )
            return State()

    def write(self, state: State) -> None:
        """Survives a power cut on return.

        Raises:
            DiskError: the file is as it was.
        """
        written = self.path.with_name(self.path.name + ".new")
        workers = state.workers[:LMCACHE_WORKERS_MAX]
        with disk_errors("note the workers of LMCache", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with written.open("wb") as file:
                file.write(
                    msgspec.json.encode(State(incarnations=state.incarnations, workers=workers))
                )
                file.flush()
                os.fsync(file.fileno())
            written.replace(self.path)


def begin_run(file: StateFile, wall_now: float) -> State:
    """The state of this run, noted.

    Raises:
        NewerVersionError: a newer Reprise wrote the last one.
        DiskError: it cannot be noted.
    """
    before = file.read()
    first = before.incarnations + RUN_INCARNATIONS if before.incarnations else 0
    state = State(incarnations=max(first, round(1000 * wall_now)), workers=before.workers)
    # What was kept holds for this run alone: one that is killed has not kept what came meanwhile.
    workers = tuple(msgspec.structs.replace(one, kept={}) for one in before.workers)
    file.write(msgspec.structs.replace(state, workers=workers))
    return state
