"""The options of every command that uses Kafka, each by flag and by environment variable."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from brokers.broker_settings import KafkaSettings
from console.settings import setting
from query_api.access.access_settings import check_loopback
from reprise.cli.access_options import INSECURE_OPTION
from reprise.cli.tls_options import metrics_tls_options
from reprise.http.tls_settings import TlsSettings
from schemas.errors import ConfigurationError, StorageError
from schemas.topics import EVENTS_PARTITIONS, REGISTRY_PARTITIONS
from storage.slots import take_slot

SLOTS_MAX: Final = 256  # --slots: files that are tried as a role starts

R = TypeVar("R")
Command = Callable[..., R]

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_FILE: Final = click.Path(dir_okay=False)
_SELDOM_SET: Final = frozenset(
    {
        "slots",
        *(f"kafka.{name}" for name in ("events_partitions", "registry_partitions", "replication")),
        *(f"kafka.sasl_{name}" for name in ("mechanism", "username", "password")),
        *(f"kafka.ssl_{name}" for name in ("cafile", "certfile", "keyfile")),
        "kafka.security_protocol",
    }
)


def _option(
    flag: str, variable: str, key: str, help_text: str, **attributes: Any
) -> Callable[[Any], Any]:
    return setting(
        flag,
        key=key,
        is_seldom_set=key in _SELDOM_SET,
        is_secret=key == "kafka.sasl_password",
        envvar=variable,
        show_default=attributes.get("default", "") != "",
        help=help_text,
        **attributes,
    )


_PREFIX_OPTION: Final = _option(
    "--topic-prefix",
    "REPRISE_TOPIC_PREFIX",
    "kafka.topic_prefix",
    "The topics are PREFIX.events and so on; one deployment has one prefix.",
    default="reprise",
)
_SHAPE_OPTIONS: Final = (
    _option(
        "--events-partitions",
        "REPRISE_EVENTS_PARTITIONS",
        "kafka.events_partitions",
        "Partitions of PREFIX.events and PREFIX.table; the same for every role.",
        type=click.IntRange(min=1),
        default=EVENTS_PARTITIONS,
    ),
    _option(
        "--registry-partitions",
        "REPRISE_REGISTRY_PARTITIONS",
        "kafka.registry_partitions",
        "Partitions of PREFIX.registry and PREFIX.cursors; the same for every role.",
        type=click.IntRange(min=1),
        default=REGISTRY_PARTITIONS,
    ),
    _option(
        "--replication",
        "REPRISE_REPLICATION",
        "kafka.replication",
        "Replicas of each topic that is created.",
        type=click.IntRange(min=1),
        default=1,
    ),
)

_CLIENT_OPTIONS: Final = (
    _option(
        "--kafka-security-protocol",
        "REPRISE_KAFKA_SECURITY_PROTOCOL",
        "kafka.security_protocol",
        "The security protocol of the brokers' listener.",
        type=click.Choice(_PROTOCOLS),
        default="PLAINTEXT",
    ),
    _option(
        "--kafka-sasl-mechanism",
        "REPRISE_KAFKA_SASL_MECHANISM",
        "kafka.sasl_mechanism",
        "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
        default="",
    ),
    _option(
        "--kafka-sasl-username",
        "REPRISE_KAFKA_SASL_USERNAME",
        "kafka.sasl_username",
        "SASL user name.",
        default="",
    ),
    _option(
        "--kafka-sasl-password",
        "REPRISE_KAFKA_SASL_PASSWORD",
        "kafka.sasl_password",
        "SASL password; others on the machine can see a flag, and less easily the variable.",
        default="",
    ),
    _option(
        "--kafka-ssl-cafile",
        "REPRISE_KAFKA_SSL_CAFILE",
        "kafka.ssl_cafile",
        "PEM file of the authorities to trust.  [default: the system's]",
        type=_FILE,
        default="",
    ),
    _option(
        "--kafka-ssl-certfile",
        "REPRISE_KAFKA_SSL_CERTFILE",
        "kafka.ssl_certfile",
        "PEM file of the client certificate, where the brokers ask for one.",
        type=_FILE,
        default="",
    ),
    _option(
        "--kafka-ssl-keyfile",
        "REPRISE_KAFKA_SSL_KEYFILE",
        "kafka.ssl_keyfile",
        "PEM file of the client certificate's key, without a passphrase.",
        type=_FILE,
        default="",
    ),
)


def kafka_options(
    *, required: bool = True, makes_topics: bool = True
) -> Callable[[Command[R]], Command[R]]:
    """Adds the options and calls the command with `kafka`: its `KafkaSettings`.

    Args:
        required: False for a command that has other sources: `kafka` is None without `--kafka`.
        makes_topics: False for a command that only reads what is there.
    """
    servers = _option(
        "--kafka",
        "REPRISE_KAFKA",
        "kafka.brokers",
        "Brokers to connect to first, as HOST:PORT[,HOST:PORT...].",
        required=required,
        metavar="HOST:PORT[,...]",
    )
    shape = _SHAPE_OPTIONS if makes_topics else ()
    options = (servers, _PREFIX_OPTION, *shape, *_CLIENT_OPTIONS)

    def decorate(command: Command[R]) -> Command[R]:
        @wraps(command)
        def with_settings(**arguments: Any) -> R:
            settings = _take_settings(arguments)
            return command(kafka=settings, **arguments)

        # The last option added comes first in the help.
        return reduce(lambda decorated, option: option(decorated), options[::-1], with_settings)

    return decorate


class DataPlace(NamedTuple):
    """What `data` and `slots` come to.

    Attributes:
        path: what this process has for itself.
        shared: what it shares with those of its role.
        is_first: whether it does what one of them alone may do.
    """

    path: Path
    shared: Path
    is_first: bool


def data_option(help_text: str) -> Callable[[Command[R]], Command[R]]:
    """Adds `--data`, the directory of what a role keeps on its own disk, and `--slots`.

    Passes `data`: a `DataPlace`, taken for as long as this process lives.
    """
    data_dir = _option(
        "--data",
        "REPRISE_DATA",
        "data",
        help_text,
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("data"),
    )
    slots_count = _option(
        "--slots",
        "REPRISE_SLOTS",
        "slots",
        "Share --data with other processes of this role: take the first free one of its parts"
        " slot-1, slot-2, ..., of which there are so many; 0 for --data itself.",
        type=click.IntRange(0, SLOTS_MAX),
        default=0,
    )

    def decorate(command: Command[R]) -> Command[R]:
        @wraps(command)
        def with_part(*, data: Path, slots: int, **arguments: Any) -> R:
            if not slots:
                return command(data=DataPlace(data, data, is_first=True), **arguments)
            try:
                slot = take_slot(data, slots)
            except StorageError as error:
                raise click.ClickException(str(error)) from error
            place = DataPlace(slot.path, data, is_first=slot.number == 1)
            return command(data=place, **arguments)

        decorated: Command[R] = data_dir(slots_count(with_part))
        return decorated

    return decorate


def _take_settings(arguments: dict[str, Any]) -> KafkaSettings | None:
    """Takes the options out of the command's arguments."""
    bootstrap = arguments.pop("kafka")
    fields = {
        name.removeprefix("kafka_"): arguments.pop(name)
        for name in [name for name in arguments if _is_field(name)]
    }
    if bootstrap is None:
        return None
    try:
        return KafkaSettings(bootstrap=bootstrap, **fields)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _is_field(name: str) -> bool:
    return name.startswith("kafka_") or name in (
        "topic_prefix",
        "events_partitions",
        "registry_partitions",
        "replication",
    )


def metrics_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of roles that serve nothing else: passes `metrics_host`, `metrics_port` and
    `metrics_tls`, and refuses a host that strangers reach, unless `--insecure` says that they may.
    """
    port = setting(
        "--metrics-port",
        key="metrics.port",
        envvar="REPRISE_METRICS_PORT",
        type=click.IntRange(0, 65_535),
        help="Port of /health, /ready and /metrics, 0 for any.  [default: none]",
    )
    host = setting(
        "--metrics-host",
        key="metrics.host",
        envvar="REPRISE_METRICS_HOST",
        default="127.0.0.1",
        show_default=True,
        help="Address of /health, /ready and /metrics.",
    )

    @wraps(command)
    def run(
        *args: Any,
        metrics_host: str,
        metrics_port: int | None,
        metrics_tls: TlsSettings | None,
        insecure: bool,
        **options: Any,
    ) -> None:
        # Nobody gets an answer who has no certificate of these authorities.
        is_mutual = metrics_tls is not None and metrics_tls.client_authority is not None
        if metrics_port is not None and not is_mutual:
            check_loopback(metrics_host, "--metrics-host", insecure)
        command(
            *args,
            metrics_host=metrics_host,
            metrics_port=metrics_port,
            metrics_tls=metrics_tls,
            **options,
        )

    return host(port(INSECURE_OPTION(metrics_tls_options(run))))
