"""Mooncake Conductor's configuration file, read as Conductor reads it.

    {"http_server_port": 13333,
     "kvevent_instance": {"node1": {"endpoint": "tcp://10.0.0.7:5557", "type": "vLLM",
                                    "modelname": "m", "block_size": 16, "dp_rank": 0}}}

An entry has the fields of `POST /register`; `instance_id` defaults to the entry's name and
`dp_rank` to 0. Unknown fields are ignored; an entry that cannot be used is logged and skipped.
"""

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.wire import KINDS
from console.addresses import DEFAULT_PORT
from query_api.http.errors import RequestError
from query_api.http.requests.registrations import (
    OWN_FIELDS,
    REGISTER_FIELDS,
    read_registration,
)
from query_api.http.wire import Wire
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from schemas.registration import Registration
from storage.files import read_file

logger = logging.getLogger(__name__)

_KNOWN: Final = REGISTER_FIELDS | OWN_FIELDS


class Configuration(msgspec.Struct, frozen=True):
    """What the file says: the port, and the publishers to follow."""

    port: int = DEFAULT_PORT
    registrations: tuple[Registration, ...] = ()


class _File(msgspec.Struct):
    http_server_port: int = DEFAULT_PORT
    kvevent_instance: dict[str, dict[str, Any]] = {}


def load(path: Path, *, required: bool) -> Configuration:
    """Reads the file; where it is missing and not required, the defaults.

    Raises:
        ConfigurationError: it cannot be read or is not such a file; the message says where.
    """
    try:
        text = read_file(path, SETTINGS_FILE_BYTES_MAX)
    except FileNotFoundError as error:
        if required:
            raise ConfigurationError(
                f"Expected a configuration file of Conductor, got none at: {path}. Give --config"
                " another one, or leave it and CONDUCTOR_CONFIG_PATH out"
            ) from error
        return Configuration()
    except OSError as error:
        message = f"Cannot read {path}: {cause_of(error)}. Give --config another file"
        if not required:
            message = (
                f"Cannot read {path}: {cause_of(error)}. Conductor's configuration is looked for"
                " there unless --config or CONDUCTOR_CONFIG_PATH names another file: let this user"
                " read it, or name one"
            )
        raise ConfigurationError(message) from error
    try:
        parsed = msgspec.json.decode(text, type=_File)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigurationError(
            f"Expected Conductor's configuration in {path}, got: {cause_of(error)}"
        ) from error
    if not 0 <= parsed.http_server_port <= 65_535:
        raise ConfigurationError(
            f"Expected http_server_port from 0 to 65535 in {path}, got: {parsed.http_server_port}"
        )
    entries = [_entry(path, name, fields) for name, fields in parsed.kvevent_instance.items()]
    return Configuration(
        parsed.http_server_port, tuple(entry for entry in entries if entry is not None)
    )


def _entry(path: Path, name: str, fields: dict[str, Any]) -> Registration | None:
    used = {key: value for key, value in fields.items() if key in _KNOWN}
    body = msgspec.json.encode({"instance_id": name, "dp_rank": 0} | used)
    try:
        return read_registration(body, Wire.JSON, KINDS)
    except RequestError as error:
        logger.warning(
            "Cannot register `%s` of %s: %s. It is left out; correct the file, or POST /register"
            " it",
            *(name, path, error.message + error.more),
        )
        return None
