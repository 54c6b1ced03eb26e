"""`reprise curve-key`."""

import os
from pathlib import Path

import click


@click.command("curve-key")
@click.argument("name", type=click.Path(path_type=Path, dir_okay=False))
def curve_key(name: Path) -> None:
    """Make a key pair, of a relay or of a bridge, and print its public key.

    NAME.key_secret has both keys, for its owner alone: --curve-key of `reprise relay`, and
    engines.curve_key of `bridge` and `up`. NAME.key has the public one. A relay's is registered
    with its engine as `curve_server_key`; a bridge's goes into the --bridge-keys of the relays.

    \b
    reprise curve-key relay-1
    reprise curve-key bridge-1 >> bridges.txt
    """  # noqa: D301
    from zmq.auth import create_certificates, load_certificate

    for suffix in (".key", ".key_secret"):
        path = name.with_name(name.name + suffix)
        if path.exists():
            raise click.ClickException(
                f"Expected a new name, but {path} is there: what uses it would lose its key"
            )
    umask = os.umask(0o077)
    try:
        public, _ = create_certificates(name.parent, name.name)
    except OSError as error:
        raise click.ClickException(f"Cannot write {name}.key_secret: {error.strerror}") from error
    finally:
        os.umask(umask)
    key, _ = load_certificate(public)
    click.echo(key.decode())
