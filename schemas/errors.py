"""The errors that more than one room of Reprise knows.

    RepriseError
    +-- ConfigurationError        the settings or the configuration file are wrong
    +-- RegistrationError         a registration cannot be accepted
    |   +-- RegistrationConflictError
    |   +-- EndpointError
    |   +-- OpenFilesError        this process may open no more files
    +-- NotRegisteredError        no such publisher
    +-- WireError                 an engine sent what cannot be used
    |   +-- FrameError            a message is not topic, sequence, payload
    |   +-- BatchError            a payload is not a batch of events
    |   +-- EventError            one event of a batch is unusable
    |       +-- PassedOverError   one event is about something else
    +-- RecordError               a log record cannot be used
    |   +-- RecordFormatError
    |   +-- RecordVersionError
    |   +-- EventsFormatError
    +-- EntryError                an entry of the registry, the cursors or a spool cannot be used
    +-- StorageError              the data directory
    |   +-- DataDirectoryInUseError
    |   +-- RowCorruptError
    |   +-- NewerVersionError   a newer Reprise wrote what is stored
    |   |   +-- RowVersionError
    |   +-- DiskError             a read or a write failed: full or failing disk
    |   |   +-- DamagedError      files are not as they were written, or some are gone
    |   +-- DiskFullError         there is no room to start
    |   +-- TableTooLargeError    rows that count together do not fit one transaction
    +-- TableLostError            a worker cannot write its table
    +-- PastError                 the past that was asked for cannot be had

Errors that one room raises and handles itself stand there. Messages about input say what was
expected, what came, and where; those about failures say what failed, where, and why. Wire, record
and entry errors carry `reason`, the short name under which they are counted.
"""

from typing import TYPE_CHECKING

from schemas.limits import MIB

if TYPE_CHECKING:
    from schemas.identities import PublisherKey


class RepriseError(Exception):
    """Base of all of them; catch it where the service must go on."""


class ConfigurationError(RepriseError):
    """Operator action: fix the named setting and restart."""


class RegistrationError(RepriseError):
    """Operator action: fix the request; nothing was changed."""


class RegistrationConflictError(RegistrationError):
    """Operator action: unregister the publisher that is named, or choose another endpoint or
    instance.

    Attributes:
        differs: the first field that differs from the other registration, with both values; "".
    """

    def __init__(self, text: str, differs: str = "") -> None:
        self.differs = differs
        super().__init__(text)


class EndpointError(RegistrationError):
    """A ZMQ address that can never be connected to.

    Operator action: give an address such as `tcp://10.0.0.7:5557`. An engine that is merely not up
    yet is no error: the bridge keeps trying.
    """


class AddressRefusedError(EndpointError):
    """An address that nobody may have the service connect to. Operator action: `engines.allow`,
    or the address of an engine.
    """


class CurveError(EndpointError):
    """An encrypted link that cannot be had. Operator action: `engines.curve_key` of the bridges, or
    the relay's public key in the registration.
    """


class OpenFilesError(RegistrationError):
    """No file is left for the sockets of one more publisher; nothing is wrong with the request.

    Operator action: raise the limit of open files, or unregister publishers.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"Cannot open the sockets of one more publisher: {detail}. Raise the limit of open"
            " files (`ulimit -n`, `LimitNOFILE=` of a systemd unit, `--ulimit nofile=` of a"
            " container): a publisher takes five, an HTTP client one"
        )


class NotRegisteredError(RepriseError):
    """Operator action: none; `GET /services` lists what is registered."""

    def __init__(self, service_key: str) -> None:
        self.service_key = service_key
        super().__init__(f"service not found: {service_key}")


class WireError(RepriseError):
    """Operator action: see `reprise_bridge_dropped_total` for how often, and the engine's
    version.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


class FrameError(WireError):
    """A ZMQ message that is not three frames: topic, 8-byte sequence, payload."""


class BatchError(WireError):
    """A payload that is not a batch; every event in it is lost, the stream goes on."""


class EventError(WireError):
    """One event that cannot be used; its siblings in the batch are."""


class PassedOverError(EventError):
    """One event that is about something else than the publisher's blocks, as of a store that others
    use, too: it is counted, and nothing is missing without it.
    """


class ToleratedError(PassedOverError):
    """One event that is used but for what is not known of it: nothing is missing without that."""


class LeftOutError(EventError):
    """One event whose blocks cannot be used, and are known to be held all the same: the log has
    their names (`schemas.events.StoredBlocks.left_out`), so that the table knows when that ends.
    """


class RecordError(RepriseError):
    """Operator action: the record is skipped and counted; report it with its partition and
    offset.
    """

    reason = "record"


class RecordFormatError(RecordError):
    """A log record that is not one of `schemas.records`."""

    reason = "malformed_record"

    def __init__(self, *, detail: str) -> None:
        super().__init__(f"Expected a log record (msgpack map), got: {detail}")


class RecordVersionError(RecordError):
    """Operator action: upgrade this process; a newer one has written to the log."""

    reason = "newer_version"

    def __init__(self, *, version: int, supported: int) -> None:
        self.version = version
        self.supported = supported
        super().__init__(
            f"Expected a record of version `{supported}` or older, got `{version}`: a newer Reprise"
            " wrote it, upgrade this one"
        )


class EventsFormatError(RecordError, ValueError):
    """The events of a record are not an array of block events; none of them was applied."""

    reason = "malformed_events"


class EntryError(RepriseError):
    """An entry of the registry, of the cursors or of a spool cannot be used. Its text does not
    say where it stands, which the reader knows.

    Operator action: the entry is skipped and counted; write it again, a registration by
    `/register` or `/unregister`.

    Attributes:
        reason: `malformed_key`, `malformed_value`, `newer_version`, `key_mismatch` or `too_many`.
        publisher: whose it is; None where its key cannot be read.
    """

    def __init__(
        self, reason: str, *, detail: str, publisher: "PublisherKey | None" = None
    ) -> None:
        self.reason = reason
        self.publisher = publisher
        super().__init__(f"Expected a usable entry, got {reason}: {detail}")


class StorageError(RepriseError):
    """Operator action: see the message; nothing that was stored has been changed."""


class DataDirectoryInUseError(StorageError):
    """Operator action: stop the other process, or give another directory by `--data`."""

    def __init__(self, path: str, holder: int | None = None) -> None:
        self.path = path
        process = "that process" if holder is None else f"process {holder}"
        super().__init__(
            f"Expected a data directory that no other process uses, but it is locked: {path}. Stop"
            f' {process}, or choose another directory with --data (`make run ARGS="--data DIR"`)'
        )


class BackupError(StorageError):
    """Operator action: see the message; neither the data directory nor the backup was changed."""


class RowCorruptError(StorageError):
    """Operator action: none; the table is rebuilt from the log."""

    def __init__(self, *, key: bytes, detail: str) -> None:
        self.key = key
        super().__init__(f"Expected an intact table row, {detail}, at key: {key.hex()}")


class NewerVersionError(StorageError):
    """A newer Reprise wrote what is stored. It is no damage: it is left as it is.

    Operator action: upgrade this process, or take what the message names out of its way.

    Attributes:
        what: of people, as `table rows`.
        supported: the newest that is read.
        where: its path or topic; "" until a reader that knows it has said it.
    """

    def __init__(self, what: str, *, version: int, supported: int, where: str = "") -> None:
        self.what = what
        self.version = version
        self.supported = supported
        self.where = where
        super().__init__(what)

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return (
            f"Expected {self.what} of version `{self.supported}` or older, got `{self.version}`"
            f"{place}: a newer Reprise wrote it, and it is left as it is. Upgrade this one"
        )


class RowVersionError(NewerVersionError):
    """Rows of a table. Operator action: as above; without its directory the table is rebuilt from
    the log.
    """

    def __init__(self, *, version: int, supported: int) -> None:
        super().__init__("table rows", version=version, supported=supported)


class DiskError(StorageError):
    """A read, a write or a sync failed. Events are kept in memory up to a bound, and the write
    is retried.

    Operator action: free disk space or fix the disk; the service recovers by itself.
    """

    def __init__(self, *, action: str, path: str, detail: str) -> None:
        self.path = path
        super().__init__(f"Cannot {action} at {path}: {detail}")


class ClosedDatabaseError(DiskError):
    """A database could not be opened again after a failed write; the text is that attempt's. It is
    tried again with the next write.

    Operator action: see the message.
    """

    def __init__(self, why: str, *, path: str) -> None:
        self.path = path
        StorageError.__init__(self, why)


class DamagedError(DiskError):
    """Files of a database are not as they were written, or some are gone.

    Operator action: see the message. What can be made again is set aside and made again by itself;
    the log of the embedded service is not, and needs `reprise repair`.

    Attributes:
        action: what was tried, as `open the log`.
        file: the one that is blamed, within the path; "" where that cannot be told.
        detail: in the words of the database.
    """

    def __init__(
        self, *, action: str, path: str, detail: str, file: str = "", remedy: str = ""
    ) -> None:
        self.action = action
        self.file = file
        self.detail = detail
        where = f"{file} is damaged: {detail}" if file else f"its files are damaged: {detail}"
        super().__init__(action=action, path=path, detail=f"{where}. {remedy}" if remedy else where)

    def with_remedy(self, remedy: str) -> "DamagedError":
        """The same, saying what to do."""
        return DamagedError(
            action=self.action,
            path=self.path,
            detail=self.detail,
            file=self.file,
            remedy=remedy,
        )


class DiskFullError(StorageError):
    """There is no room for what is about to begin; nothing was changed.

    Operator action: free as much as the message says, or give a directory elsewhere by `--data`.
    """

    def __init__(self, *, action: str, path: str, needed_bytes: int, free_bytes: int) -> None:
        self.path = path
        super().__init__(
            f"Cannot {action} at {path}: no space left on its file system. Free at least"
            f" {needed_bytes / MIB:.1f} MiB there ({free_bytes / MIB:.1f} MiB are free), or give a"
            " directory on another file system by --data"
        )


class TableTooLargeError(StorageError):
    """Rows of a partition's table that must count together are more than a transaction may hold.

    Operator action: move the worker's copy of the partition (`table-N` in its data directory) out
    of the way; the partition's events are folded again from their beginning. Fewer blocks for each
    partition, that is more partitions, keep it from coming back.
    """

    def __init__(self, *, partition: int, topic: str, size_bytes: int, bytes_max: int) -> None:
        self.partition = partition
        super().__init__(
            f"Expected at most `{bytes_max}` bytes of rows that count together, got `{size_bytes}`"
            f" for partition {partition} of: {topic}"
        )


class TableLostError(RepriseError):
    """The table cannot be written: another worker owns it, or the broker is away.

    Operator action: none; the worker reopens it if it still owns the partition.
    """


class PastError(RepriseError):
    """What was asked of a past position cannot be answered. Operator action: ask for a position
    that the error names, or keep more (`history.gib`, `log.retention_gib`).

    Attributes:
        reason: one word, as clients get it.
        status: of HTTP: whether it is the request's fault, or may be tried again.
    """

    def __init__(self, reason: str, text: str, *, status: int = 400) -> None:
        self.reason = reason
        self.status = status
        super().__init__(text)
