"""Java and the jars of Apache Kafka: found, or fetched once by Maven into a cache outside the tree.

The version is that of `pom.xml`. REPRISE_KAFKA_LIBS names another directory for the jars; where it
holds them already, Maven is not needed.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_POM: Final = Path(__file__).with_name("pom.xml")
_JAVA_MIN: Final = 17
_FETCH_S: Final = 600.0
_JAVA_S: Final = 30.0


class BrokerUnavailableError(Exception):
    """No broker can be run here; the text says what is missing and how to get it."""


def kafka_version() -> str:
    """The version of Apache Kafka that development and tests run against."""
    found = re.search(r"<kafka\.version>([\d.]+)</kafka\.version>", _POM.read_text())
    assert found is not None, "the pom names its version of Kafka"
    return found[1]


def jars_directory() -> Path:
    """Where the jars are, or will be."""
    chosen = os.environ.get("REPRISE_KAFKA_LIBS", "")
    return Path(chosen) if chosen else cache_directory() / f"kafka-{kafka_version()}"


def cache_directory() -> Path:
    """Where development keeps what can be fetched or made again."""
    return Path("~/.cache/reprise").expanduser()


def find_java() -> str:
    """The path of a Java that can run the broker.

    Raises:
        BrokerUnavailableError: there is none, or it is too old.
    """
    java = shutil.which("java")
    if java is None:
        raise BrokerUnavailableError(
            f"Expected Java {_JAVA_MIN} or later on the PATH, found none (Debian, Ubuntu:"
            " apt-get install openjdk-17-jre-headless maven)"
        )
    said = java_version(java)
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < _JAVA_MIN:
        raise BrokerUnavailableError(
            f"Expected Java {_JAVA_MIN} or later, got at {java}: {said.strip().splitlines()[:1]}"
        )
    return java


@functools.cache
def java_version(java: str) -> str:
    """What the Java at this path says of its version; it is asked once."""
    return subprocess.run(  # on the error stream
        [java, "-version"], capture_output=True, text=True, timeout=_JAVA_S, check=False
    ).stderr


def have_jars() -> bool:
    """Whether the jars need not be fetched."""
    return any(jars_directory().glob("kafka_2.13-*.jar"))


def fetch_jars() -> Path:
    """Makes sure that the jars are there, and returns their directory.

    They appear all at once, so two processes may do it at the same time.

    Raises:
        BrokerUnavailableError: Maven is missing, or could not fetch them.
    """
    jars = jars_directory()
    if have_jars():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailableError(
            f"Expected the jars of Apache Kafka in {jars}, or Maven (mvn) on the PATH to fetch"
            " them, found neither (Debian, Ubuntu: apt-get install maven)"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{jars.name}-", dir=jars.parent) as fetched:
        _run_maven(maven, Path(fetched))
        try:
            os.rename(fetched, jars)
        except OSError:
            if not have_jars():  # another process was faster, or it is not ours to replace
                raise
        else:
            os.mkdir(fetched)  # for the context manager to remove
    return jars


def _run_maven(maven: str, into: Path) -> None:
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        "--file",
        str(_POM),
        "dependency:copy-dependencies",
    ]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerUnavailableError(
            f"Expected Maven to fetch the jars of Apache Kafka within {_FETCH_S:.0f} s"
        ) from error
    if done.returncode:
        raise BrokerUnavailableError(
            "Expected Maven to fetch the jars of Apache Kafka, got:\n"
            + (done.stdout + done.stderr)[-2000:]
        )
