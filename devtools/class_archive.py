"""Makes the archive of the broker's classes, see `devtools.broker_start`."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from devtools.broker import Broker
from devtools.broker_start import alone, start_files
from devtools.kafka_jars import fetch_jars, find_java

ARCHIVE_S: Final = 120.0


def archive_classes() -> None:
    """Makes the later starts of brokers on this machine short; does nothing where that is done.

    Cost: a start and an orderly stop of a broker, about ten seconds.

    Raises:
        BrokerUnavailableError: Java or the jars are missing.
        RuntimeError: the broker did not start.
    """
    archive = start_files(find_java(), fetch_jars()).classes
    with alone("classes"), tempfile.TemporaryDirectory(prefix="reprise-classes-") as directory:
        if archive.exists():
            return
        made = Path(directory) / "classes.jsa"
        broker = Broker(Path(directory) / "broker", java_flags=[f"-XX:ArchiveClassesAtExit={made}"])
        broker.start()
        broker.stop(timeout_s=ARCHIVE_S)
        if made.exists():
            # On another file system it is copied first, so that nobody starts with half of it.
            partial = archive.with_suffix(".partial")
            shutil.move(made, partial)
            partial.replace(archive)
