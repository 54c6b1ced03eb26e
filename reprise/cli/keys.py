"""`reprise keys`."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from console.terminal import printable
from query_api.access.key_editing import add_key, list_keys, revoke_key
from query_api.access.keys import (
    Key,
    check_id,
    check_rate,
    check_tenants,
    digest_of,
    make_secret,
    spell,
)
from query_api.access.rights import Access, Right
from reprise.bounds import OPTION_HOURS_MAX

_SECONDS: Final = {"h": 3600, "d": 86_400, "w": 604_800}
_PERIOD: Final = re.compile(r"([0-9]{1,6})([hdw])")
_FILE = click.option(
    "--file",
    "path",
    envvar="REPRISE_KEYS",
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("keys.toml"),
    show_default=True,
    help="The file of keys, as `--keys` of a service names it.",
)


@click.group()
def keys() -> None:
    """Make, list and revoke the keys that requests must have.

    A service reads the file again when it changes; none needs a restart.

    \b
    reprise keys add router-1 --right query --right route --right feedback
    reprise keys list
    reprise keys revoke router-1
    """  # noqa: D301


@keys.command()
@_FILE
@click.argument("key_id", metavar="ID")
@click.option(
    "--right",
    "rights",
    type=click.Choice([right.value for right in Right]),
    multiple=True,
    required=True,
    help="What it may do; several times for several rights. admin has all of them.",
)
@click.option(
    "--tenant",
    "tenants",
    metavar="NAME",
    multiple=True,
    help="Whose data it sees; several times for several tenants.  [default: everybody's]",
)
@click.option(
    "--expires",
    metavar="WHEN",
    help="90d, 12h, 4w from now, or a time as 2027-06-01T00:00:00Z.  [default: never]",
)
@click.option(
    "--certificate",
    metavar="NAME",
    default="",
    help="A client whose certificate is for this name (subjectAltName) needs no other key, with"
    " tls.client_ca.",
)
@click.option("--rate", type=float, help="Requests a second.  [default: as many as there are]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the key into this file, for its owner alone, and do not print it.",
)
@click.option(
    "--if-missing", is_flag=True, help="Do nothing where a key of that id is there already."
)
def add(
    path: Path,
    key_id: str,
    rights: tuple[str, ...],
    tenants: tuple[str, ...],
    expires: str | None,
    certificate: str,
    rate: float | None,
    out: Path | None,
    if_missing: bool,
) -> None:
    """Make a key, and print it: it is shown this once."""
    if if_missing and path.exists() and key_id in list_keys(path):
        return
    secret = make_secret()
    access = Access(
        check_id(key_id),
        frozenset(map(Right, rights)),
        check_tenants(frozenset(tenants), "--tenant") if tenants else None,
    )
    key = Key(
        digest=digest_of(secret),
        access=access,
        expires=None if expires is None else _moment(expires),
        rate=None if rate is None else check_rate(rate, "--rate"),
        certificate=certificate,
    )
    if out is not None:
        _write(out, spell(key_id, secret))
    add_key(path, key)
    if out is None:
        click.echo(spell(key_id, secret))
        click.echo(f"Written to {path}. It is not shown again.", err=True)


@keys.command("list")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(path: Path, as_json: bool) -> None:
    """List the keys: who may do what, and until when. Secrets are nowhere to be shown."""
    found = list_keys(path)
    now = time.time()
    rows = [_row(found[key_id], now) for key_id in sorted(found)]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        tenants = row["tenants"]
        parts = [
            str(row["id"]),
            ",".join(row["rights"]),
            "all tenants" if tenants is None else "tenants " + ",".join(tenants),
        ]
        if row["rate"] is not None:
            parts.append(f"{row['rate']:g}/s")
        if row["certificate"]:
            parts.append(f"certificate {row['certificate']}")
        if row["expires"] is not None:
            parts.append(f"{'expired' if row['expired'] else 'expires'} {row['expires']}")
        click.echo(printable("  ".join(parts)))


@keys.command()
@_FILE
@click.argument("key_id", metavar="ID")
def revoke(path: Path, key_id: str) -> None:
    """Take a key out of the file: services refuse it from a second later on."""
    revoke_key(path, key_id)
    click.echo(f"Revoked: {key_id}", err=True)


def _row(key: Key, now: float) -> dict[str, Any]:
    expires = key.expires
    tenants = key.access.tenants
    return {
        "id": key.id,
        "rights": sorted(key.access.rights),
        "tenants": None if tenants is None else sorted(tenants),
        "expires": None
        if expires is None
        else datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "expired": expires is not None and expires <= now,
        "rate": key.rate,
        "certificate": key.certificate,
    }


def _moment(text: str) -> float:
    """Unix seconds of a period from now on, or of a time."""
    period = _PERIOD.fullmatch(text)
    now = time.time()
    if period is not None and int(period[1]) * _SECONDS[period[2]] <= 3600 * OPTION_HOURS_MAX:
        return now + int(period[1]) * _SECONDS[period[2]]
    try:
        found = datetime.fromisoformat(text)
        moment = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise click.ClickException(
            f"Expected --expires to be 90d, 12h, 4w or a time, got: {printable(text[:80])}"
        ) from error
    if moment <= now:
        raise click.ClickException(f"Expected --expires to lie ahead, got: {printable(text)}")
    return moment


def _write(path: Path, key: str) -> None:
    try:
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_text(f"{key}\n")
    except OSError as error:
        raise click.ClickException(f"Cannot write {path}: {error.strerror or error}") from error
