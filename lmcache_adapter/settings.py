"""Where LMCache is answered, and of which model the workers of an instance are.

LMCache's messages name no model, no tenant and no chunk size: that is configured here, for all
workers and by instance.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.identities import DEFAULT_TENANT, BlockSize, Name, StreamKey, Text
from schemas.limits import PORT_MAX, SETTINGS_FILE_BYTES_MAX
from schemas.registration import HashProfile
from schemas.setting import changed, part, setting
from storage.files import read_file

PULL_PORT: Final = 8300
REPLY_PORT: Final = 8400
HEARTBEAT_PORT: Final = 8401
COORDINATOR_PORT: Final = 9300
CHUNK_TOKENS: Final = 256
"""LMCache's own default."""

TOPIC: Final = "lmcache-cache-events"
"""LMCache's own default."""

WILDCARDS: Final = frozenset({"0.0.0.0", "*", "::", "[::]"})
BLAKE3: Final = "blake3"
"""That of servers of the multi-process mode, by default."""

HASH_ALGORITHMS: Final = ("", "sha256_cbor", "builtin", BLAKE3)
STRATEGY: Final = "lmcache"
PROJECTION: Final = "first_8_bytes_big_endian"


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of the blocks of an instance, as in `/register`.

    Attributes:
        block_size: tokens of a chunk.
        hash_algorithm: LMCache's `pre_caching_hash_algorithm`: `sha256_cbor` or `builtin`; of
            servers of its multi-process mode `blake3`; "" where it is not known: then `/lookup`
            cannot hash tokens.
        hash_seed: PYTHONHASHSEED of the workers, or `none_hash:` and the number that they log; ""
            for vLLM's own default.
        sharded: each worker of an instance has a part of each chunk, as with tensor parallelism;
            False where each has all of it.
        says_all: of the topic's: no server of it drops events before it numbers them, as LMCache's
            own bus does where it is full; else answers about it are unconfirmed.
    """

    modelname: Name = "lmcache"
    tenant_id: Name = DEFAULT_TENANT
    block_size: BlockSize = CHUNK_TOKENS
    additionalsalt: Text = ""
    hash_algorithm: Text = ""
    hash_seed: Text = ""
    sharded: bool = True
    says_all: bool = False

    def stream(self, instance_id: str) -> StreamKey:
        """The stream of an instance of it."""
        return StreamKey(
            self.tenant_id, self.modelname, self.block_size, self.additionalsalt, instance_id
        )

    @property
    def hash_profile(self) -> HashProfile | None:
        """How its chunks are hashed, where that is known."""
        if not self.hash_algorithm:
            return None
        return HashProfile(
            strategy=STRATEGY,
            algorithm=self.hash_algorithm,
            python_hash_seed=self.hash_seed,
            index_projection=PROJECTION,
        )


class Models(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model of each instance; and of each model that servers of LMCache's multi-process mode
    name, by that name.
    """

    default: Model = Model()
    instances: Mapping[str, Model] = {}
    models: Mapping[str, Model] = {}

    def of(self, instance_id: str) -> Model:
        """That of an instance."""
        return self.instances.get(instance_id, self.default)

    def named(self, name: str) -> Model:
        """What is said of a model that LMCache's topic names."""
        return self.models.get(name, self.default)


_models_decoder: Final = msgspec.json.Decoder(Models)


Port = Annotated[int, msgspec.Meta(ge=0, le=PORT_MAX)]


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the three sockets are bound.

    Attributes:
        advertised: the host that workers are told for their heartbeats; "" for the one that they
            have reached us by.
    """

    host: str = "127.0.0.1"
    pull_port: Port = PULL_PORT
    reply_port: Port = REPLY_PORT
    heartbeat_port: Port = HEARTBEAT_PORT
    advertised: str = ""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where LMCache's own topic is.

    Attributes:
        bootstrap: `host:port`, several separated by commas.
    """

    bootstrap: str
    topic: str = TOPIC


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the coordinator answers."""

    host: str
    port: Port = COORDINATOR_PORT


def read_models(path: Path | None, model_name: str | None = None) -> Models:
    """The models of a file, `{"default": {...}, "instances": {"INSTANCE": {...}}, "models":
    {"MODEL": {...}}}`, where every field may be missing; `model_name` in the place of the
    default's.

    Raises:
        ConfigurationError: it cannot be read, or is none; says where.
    """
    models = Models()
    if path is not None:
        try:
            models = _models_decoder.decode(read_file(path, SETTINGS_FILE_BYTES_MAX))
        except OSError as error:
            raise ConfigurationError(f"Cannot read {path}: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"Expected LMCache's models in {path}: {cause_of(error)}"
            ) from error
    if model_name is not None:
        default = msgspec.structs.replace(models.default, modelname=model_name)
        models = msgspec.structs.replace(models, default=default)
    for model in (models.default, *models.instances.values(), *models.models.values()):
        if model.hash_algorithm not in HASH_ALGORITHMS:
            raise ConfigurationError(
                f"Expected a hash_algorithm of {' or '.join(HASH_ALGORITHMS[1:])},"
                f" got: {model.hash_algorithm}"
            )
    return models


def read_address(text: str, advertised: str = "") -> Address:
    """`HOST`, or `HOST:PULL,REPLY,HEARTBEAT` with three ports, 0 for any.

    Raises:
        ConfigurationError: it is neither.
    """
    host, colon, ports = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, ports = text, f"{PULL_PORT},{REPLY_PORT},{HEARTBEAT_PORT}"
    numbers = ports.split(",")
    known = [int(number) for number in numbers if number.isascii() and number.isdigit()]
    if not host or len(numbers) != 3 or len(known) != 3 or max(known) > PORT_MAX:
        raise ConfigurationError(
            f"Expected HOST or HOST:PULL,REPLY,HEARTBEAT, as in 127.0.0.1:8300,8400,8401,"
            f" got: {text[:100]}"
        )
    pull, reply, heartbeat = known
    return Address(
        host=host,
        pull_port=pull,
        reply_port=reply,
        heartbeat_port=heartbeat,
        advertised=advertised,
    )


def read_topic(bootstrap: str, topic: str) -> TopicSettings:
    """Where LMCache's topic is.

    Raises:
        ConfigurationError: a server is no `HOST:PORT`.
    """
    for server in bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
            raise ConfigurationError(
                f"Expected lmcache.kafka to be HOST:PORT[,...], got: {bootstrap[:100]}"
            )
    if not topic:
        raise ConfigurationError("Expected lmcache.topic to name a topic, got none")
    return TopicSettings(bootstrap=bootstrap, topic=topic)


def read_coordinator(text: str) -> CoordinatorSettings:
    """`HOST`, or `HOST:PORT`, 0 for any.

    Raises:
        ConfigurationError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(COORDINATOR_PORT)
    if not host or not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise ConfigurationError(
            f"Expected lmcache.coordinator to be HOST or HOST:PORT, got: {text[:100]}"
        )
    return CoordinatorSettings(host=host.strip("[]"), port=int(port))


@part
class LmcacheSettings:
    """What `--lmcache` and the keys beside it say."""

    listen: str = setting(
        "lmcache.listen",
        "Serve LMCache's workers there, as their controller; without ports 8300,8400,8401."
        "  [default: off]",
        flag="--lmcache",
        is_usual=True,
        metavar="HOST[:PULL,REPLY,HEARTBEAT]",
        default="",
    )
    advertise: str = setting(
        "lmcache.advertise",
        "The host that workers send heartbeats to.  [default: that by which they reach us]",
        metavar="HOST",
        default="",
    )
    model: str = setting(
        "lmcache.model",
        "The model of LMCache's workers.  [default: that of lmcache.models, or lmcache]",
        metavar="NAME",
        default="",
    )
    models_file: Path | None = setting(
        "lmcache.models",
        "A file with the model, tenant and chunk size of each instance (JSON).",
        path="file",
        default=None,
    )
    kafka: str = setting(
        "lmcache.kafka",
        "Read LMCache's own topic there; one process alone.  [default: off]",
        metavar="HOST:PORT[,...]",
        default="",
    )
    topic_name: str = setting("lmcache.topic", "That topic.", metavar="NAME", default=TOPIC)

    coordinated: str = setting(
        "lmcache.coordinator",
        "Answer servers of LMCache's multi-process mode there, as their coordinator; without a"
        " port 9300. One process alone.  [default: off]",
        metavar="HOST[:PORT]",
        default="",
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is served."""
        return bool(self.listen or self.kafka or self.coordinated)

    @property
    def coordinator(self) -> CoordinatorSettings | None:
        """Where it answers; None: nowhere."""
        return read_coordinator(self.coordinated) if self.coordinated else None

    @property
    def address(self) -> Address | None:
        """Of the controller's sockets; None: there are none."""
        return read_address(self.listen, self.advertise) if self.listen else None

    @property
    def topic(self) -> TopicSettings | None:
        """That is read; None: none is."""
        return read_topic(self.kafka, self.topic_name) if self.kafka else None

    def read_models(self) -> Models:
        """Of the instances, and of the topic's models by their name."""
        return read_models(self.models_file, self.model or None)

    def check(self) -> None:
        """Raises ConfigurationError where they cannot be used."""
        if self.kafka and self.coordinated:
            raise ConfigurationError(
                "Expected lmcache.kafka or lmcache.coordinator, got both: a server writes its"
                " events to one of them"
            )
        if self.is_on and (self.address, self.topic, self.coordinator):
            self.read_models()

    def without_servers(self) -> "LmcacheSettings":
        """For a bridge beside the one that alone reads the topic, or is the coordinator."""
        return changed(self, kafka="", coordinated="")
