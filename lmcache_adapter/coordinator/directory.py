"""Which objects of LMCache are where, on disk: what the coordinator says of them, and what one run
tells the next.

    format              the version of this
    chunk               tokens of a chunk, once a server has said it
    s INSTANCE          what is known of a server
    o OBJECT PLACE      who has said so, in which incarnation and memory of his, and bytes

OBJECT is model, salt, rank, group and the whole hash; PLACE is the owner ("" of storage that
instances share), tier and backend. So all places of an object stand together.

What a server has stored in its memory counts until that is found empty: then that gets another
number (`ServerState.memories`), and what has one of before is deleted in passing. Who has left, and
has nothing, may be forgotten before that is done: so no number is ever used again.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from lmcache_adapter.coordinator.wire import Placement
from lmcache_adapter.topic.batches import Batch, BatchHead, ChunkEntry, ChunkKey
from lmcache_adapter.topic.servers import ServerState
from schemas.errors import ClosedDatabaseError, NewerVersionError
from storage.rocksdb import DIRECTORY, Database, disk_errors, new_batch

DIRECTORY_VERSION: Final = 1
DIRECTORY_CLOSE_S: Final = 2.0  # for those that look at it meanwhile
DIRECTORY_SWEPT: Final = 16_384  # rows that are looked at once a second, after a memory is gone

_FORMAT, _CHUNK, _SERVERS, _OBJECTS = b"format", b"chunk", b"s", b"o"
_MEMORY: Final = "l1"
_pack: Final = msgspec.msgpack.Encoder().encode


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """One placement; see the module."""

    instance_id: str
    incarnation: int
    memory: int
    size_bytes: int
    shared: bool


class _Name(msgspec.Struct, array_like=True, frozen=True):
    """The key of a row."""

    model_name: str
    cache_salt: str
    kv_rank: int
    object_group_id: int
    chunk_hash: bytes
    owner: str
    tier: str
    backend: str

    @property
    def key(self) -> ChunkKey:
        """Of its object."""
        return ChunkKey(
            chunk_hash_hex=self.chunk_hash.hex(),
            model_name=self.model_name,
            kv_rank=self.kv_rank,
            object_group_id=self.object_group_id,
            cache_salt=self.cache_salt,
        )


_read_row: Final = msgspec.msgpack.Decoder(_Row).decode
_read_name: Final = msgspec.msgpack.Decoder(_Name).decode
_read_state: Final = msgspec.msgpack.Decoder(ServerState).decode
_ARRAY: Final = _pack(_Name("", "", 0, 0, b"", "", "", ""))[:1]


class Use(NamedTuple):
    """Of what bytes are counted."""

    tier: str
    instance_id: str
    backend: str
    shared: bool
    cache_salt: str


class ObjectsFound(NamedTuple):
    """One page of objects.

    Attributes:
        total: that fit.
        page: keys, each with its placements that fit.
    """

    total: int
    page: list[tuple[ChunkKey, list[Placement]]]


class StaleRows(NamedTuple):
    """Rows that do not count.

    Attributes:
        emptied: how many memories had been found empty when it was looked.
        next: from where on it is to be looked next; None: nothing is left.
    """

    emptied: int
    keys: list[bytes]
    next: bytes | None


class Directory:
    """See the module. Whoever writes is of one loop; any thread may look.

    Args:
        data: the directory in which it is.

    Attributes:
        placements, bytes: how many there are, and of how many bytes, by what they are of.
        chunk_tokens: that a server has said; None: none has.
        memory_last: the highest number of a memory that the last run has used, as far as anything
            has it yet; behind `stored`.

    Raises:
        StorageError: it cannot be opened, or a newer Reprise wrote it.
    """

    def __init__(self, data: Path) -> None:
        self._path = data / "lmcache-directory"
        self._database = Database(self._path, DIRECTORY)
        self.placements: Counter[Use] = Counter()
        self.bytes: Counter[Use] = Counter()
        self.memory_last = 0
        self._memories: dict[str, int] = {}
        self._sweep_at: bytes | None = None
        self._emptied = 0
        self._lookers = 0
        self._lookers_changed = threading.Condition()
        self._is_closing = False
        try:
            with disk_errors("read LMCache's directory", self._path):
                self._check_version()
                chunk = self._database.get(_CHUNK)
        except BaseException:
            self._database.close()
            raise
        self.chunk_tokens = None if chunk is None else int(chunk)

    def _check_version(self) -> None:
        version = self._database.get(_FORMAT)
        if version is None:
            batch = new_batch()
            batch.put(_FORMAT, b"%d" % DIRECTORY_VERSION)
            self._database.write(batch)
        elif int(version) > DIRECTORY_VERSION:
            raise NewerVersionError(
                "LMCache's directory",
                version=int(version),
                supported=DIRECTORY_VERSION,
                where=str(self._path),
            )

    def close(self) -> None:
        """Makes it durable, and closes it; who looks meanwhile is told so. May be called again."""
        with self._lookers_changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._lookers_changed.wait_for(lambda: not self._lookers, DIRECTORY_CLOSE_S)
        try:
            self.sync()
        finally:
            self._database.close()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        with self._lookers_changed:
            self._check_open()
            self._lookers += 1
        try:
            with disk_errors("read LMCache's directory", self._path):
                yield
        finally:
            with self._lookers_changed:
                self._lookers -= 1
                self._lookers_changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closing:
            raise ClosedDatabaseError("LMCache's directory is being closed", path=str(self._path))

    def sync(self) -> None:
        """Makes what was written survive a power cut. Raises StorageError."""
        with disk_errors("sync LMCache's directory", self._path):
            self._database.sync()

    @property
    def is_swept(self) -> bool:
        """Whether all rows count."""
        return self._sweep_at is None

    # What one run tells the next

    def servers(self) -> Iterator[tuple[str, ServerState]]:
        """Those of the last run; before anything else is looked at."""
        with disk_errors("read LMCache's directory", self._path):
            for key, value in self._database.scan(_SERVERS, _SERVERS):
                instance_id, state = key[1:].decode(), _read_state(value)
                self._memories[instance_id] = state.memories
                self.memory_last = max(self.memory_last, state.memories)
                yield instance_id, state

    def stored(self) -> Iterator[Batch]:
        """What they hold, one object each; behind `servers`."""
        with disk_errors("read LMCache's directory", self._path):
            for name, row in self._rows(_OBJECTS):
                self.memory_last = max(self.memory_last, row.memory)
                if not self._counts(name, row):
                    self._sweep_at = _OBJECTS
                    continue
                self._count(name, row, 1)
                yield Batch(
                    instance_id=row.instance_id,
                    incarnation=row.incarnation,
                    seq=1,
                    event_type="store",
                    tier="l1" if name.tier == _MEMORY else "l2",
                    backend=name.backend,
                    shared=row.shared,
                    entries=[ChunkEntry(key=name.key, size_bytes=row.size_bytes)],
                )

    def bind_chunk(self, tokens: int) -> None:
        """A server has said so. Raises StorageError."""
        batch = new_batch()
        batch.put(_CHUNK, b"%d" % tokens)
        self._write(batch)
        self.chunk_tokens = tokens

    # Writing

    def keep(self, head: BatchHead, state: ServerState) -> None:
        """A batch that counts, and what is known of its server behind it: all of it or nothing.

        Raises:
            StorageError: nothing of it was written.
        """
        written = new_batch()
        written.put(_SERVERS + head.instance_id.encode(), _pack(state))
        changes: list[tuple[_Name, _Row, int]] = []
        if isinstance(head, Batch) and head.event_type in ("store", "delete"):
            is_stored = head.event_type == "store"
            latest: dict[bytes, _Row | None] = {}
            for entry in head.entries:
                name = _name_of(head, entry.key)
                key = _OBJECTS + _pack(name)
                before = latest[key] if key in latest else self._row(key)
                if before is not None and (
                    before.memory == state.memories
                    if name.tier == _MEMORY and before.instance_id == head.instance_id
                    else self._counts(name, before)
                ):
                    changes.append((name, before, -1))
                latest[key] = None
                if is_stored:
                    row = _Row(
                        head.instance_id,
                        head.incarnation,
                        state.memories,
                        entry.size_bytes,
                        head.shared,
                    )
                    latest[key] = row
                    changes.append((name, row, 1))
            for key, after in latest.items():
                if after is None:
                    written.delete(key)
                else:
                    written.put(key, _pack(after))
        self._write(written)
        self._note_memory(head.instance_id, state)
        for name, row, change in changes:
            self._count(name, row, change)

    def note(self, instance_id: str, state: ServerState) -> None:
        """What is known of a server has changed, without a batch. Raises StorageError."""
        written = new_batch()
        written.put(_SERVERS + instance_id.encode(), _pack(state))
        self._write(written)
        self._note_memory(instance_id, state)

    def forget(self, instance_id: str) -> None:
        """A server that holds nothing is no longer known. Raises StorageError."""
        written = new_batch()
        written.delete(_SERVERS + instance_id.encode())
        self._write(written)
        self._memories.pop(instance_id, None)

    def stale(self) -> StaleRows:
        """What of some rows counts no longer, from where the last call ended. Any thread."""
        begin, emptied = self._sweep_at or _OBJECTS, self._emptied
        found: list[bytes] = []
        scanned = 0
        with self._looking():
            for key, value in self._database.scan(begin, _OBJECTS):
                if scanned >= DIRECTORY_SWEPT:
                    return StaleRows(emptied, found, key)
                scanned += 1
                if not self._counts(_read_name(key[1:]), _read_row(value)):
                    found.append(key)
        return StaleRows(emptied, found, None)

    def sweep(self, rows: StaleRows) -> None:
        """Deletes these rows, where they still do not count. Raises StorageError."""
        written = new_batch()
        for key in rows.keys:
            row = self._row(key)
            if row is not None and not self._counts(_read_name(key[1:]), row):
                written.delete(key)
        self._write(written)
        if rows.emptied == self._emptied:  # else it is looked again from the first one on
            self._sweep_at = rows.next

    def _write(self, batch: object) -> None:
        with disk_errors("write LMCache's directory", self._path):
            self._database.write(batch)  # type: ignore[arg-type]

    def _note_memory(self, instance_id: str, state: ServerState) -> None:
        """What a memory held before that was found empty is no more."""
        if self._memories.get(instance_id) == state.memories:
            return
        self._memories[instance_id] = state.memories
        self._sweep_at = _OBJECTS
        self._emptied += 1
        for use in [one for one in self.placements if _is_memory_of(one, instance_id)]:
            del self.placements[use], self.bytes[use]

    def _count(self, name: _Name, row: _Row, change: int) -> None:
        use = Use(name.tier, row.instance_id, name.backend, row.shared, name.cache_salt)
        self.placements[use] += change
        self.bytes[use] += change * row.size_bytes
        if not self.placements[use]:
            del self.placements[use], self.bytes[use]

    # Looking

    def find(self, keys: Iterable[ChunkKey]) -> list[list[Placement]]:
        """Where each is, by server, tier and backend. Cost O(keys). Raises StorageError."""
        with self._looking():
            return [sorted(self._found(_prefix_of(key)), key=_order) for key in keys]

    def _found(self, prefix: bytes) -> Iterator[Placement]:
        for name, row in self._rows(prefix):
            if self._counts(name, row):
                yield _placement(name, row)

    def listed(
        self, *, tier: str, instance_id: str, backend: str, offset: int, limit: int
    ) -> ObjectsFound:
        """Objects with a placement that fits, in an order that does not change. "" fits all.

        Cost O(rows). Raises StorageError.
        """
        total, page = 0, []
        for key, placements in self._objects():
            fitting = [
                one
                for one in placements
                if tier in ("", one.tier)
                and instance_id in ("", one.instance_id)
                and backend in ("", one.backend)
            ]
            if fitting:
                if offset <= total < offset + limit:
                    page.append((key, fitting))
                total += 1
        return ObjectsFound(total, page)

    def counted(self) -> tuple[int, dict[str, int]]:
        """How many objects there are, and how many each server has in its memory. Cost O(rows).
        Raises StorageError.
        """
        total, in_memory = 0, Counter[str]()
        for _, placements in self._objects():
            total += 1
            in_memory.update({one.instance_id for one in placements if one.tier == _MEMORY})
        return total, dict(in_memory)

    def _objects(self) -> Iterator[tuple[ChunkKey, list[Placement]]]:
        last: ChunkKey | None = None
        placements: list[Placement] = []
        with self._looking():
            for name, row in self._rows(_OBJECTS):
                if not self._counts(name, row):
                    continue
                if (key := name.key) != last:
                    if last is not None:
                        yield last, placements
                    last, placements = key, []
                placements.append(_placement(name, row))
        if last is not None:
            yield last, placements

    def _rows(self, prefix: bytes) -> Iterator[tuple[_Name, _Row]]:
        for key, value in self._database.scan(prefix, prefix):
            self._check_open()
            yield _read_name(key[1:]), _read_row(value)

    def _row(self, key: bytes) -> _Row | None:
        with disk_errors("read LMCache's directory", self._path):
            value = self._database.get(key)
        return None if value is None else _read_row(value)

    def _counts(self, name: _Name, row: _Row) -> bool:
        """Whether a placement is not of a memory that was found empty since, or is forgotten."""
        return name.tier != _MEMORY or row.memory == self._memories.get(row.instance_id)


def _name_of(batch: Batch, key: ChunkKey) -> _Name:
    owner = "" if batch.shared else batch.instance_id
    return _Name(
        key.model_name,
        key.cache_salt,
        key.kv_rank,
        key.object_group_id,
        bytes.fromhex(key.chunk_hash_hex),
        owner,
        batch.tier,
        batch.backend,
    )


def _prefix_of(key: ChunkKey) -> bytes:
    """What the keys of all rows of an object begin with."""
    parts = (key.model_name, key.cache_salt, key.kv_rank, key.object_group_id)
    whole = (*parts, bytes.fromhex(key.chunk_hash_hex))
    return _OBJECTS + _ARRAY + b"".join(map(_pack, whole))


def _placement(name: _Name, row: _Row) -> Placement:
    return Placement(
        instance_id=row.instance_id,
        incarnation=row.incarnation,
        tier=name.tier,
        backend=name.backend,
        size_bytes=row.size_bytes,
        shared=row.shared,
    )


def _order(placement: Placement) -> tuple[str, str, str]:
    return placement.instance_id, placement.tier, placement.backend


def _is_memory_of(use: Use, instance_id: str) -> bool:
    return use.tier == _MEMORY and use.instance_id == instance_id
