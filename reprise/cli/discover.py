"""`reprise discover`."""

import asyncio
import os
from pathlib import Path

import click

from reprise.cli.asking import DEFAULT_URL
from reprise.cli.param_types import Amount
from reprise.cli.process import begin_service
from reprise.settings import log_level_from
from schemas.errors import RepriseError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@click.command()
@click.option(
    "--url",
    envvar="REPRISE_URL",
    show_envvar=True,
    default=DEFAULT_URL,
    show_default=True,
    help="Where any replica answers. REPRISE_KEY is its key, with the rights read and register.",
)
@click.option(
    "--namespace",
    envvar="REPRISE_NAMESPACE",
    show_envvar=True,
    help="Whose pods.  [default: the pod's own]",
)
@click.option(
    "--selector",
    envvar="REPRISE_SELECTOR",
    show_envvar=True,
    default="reprise.dev/engine",
    show_default=True,
    help="Of labels of pods, and of Services, whose EndpointSlices have them.",
)
@click.option(
    "--grace",
    envvar="REPRISE_GRACE_S",
    show_envvar=True,
    type=Amount(0, 86_400),
    default=10.0,
    show_default=True,
    help="For so many seconds a pod that is gone stays registered, unless another takes its name.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="How to reach the API server.  [default: as pods do, else ~/.kube/config]",
)
def discover(
    url: str, namespace: str | None, selector: str, grace: float, kubeconfig: Path | None
) -> None:
    """Register the engines of a Kubernetes namespace, and unregister those that are gone.

    Pods with the label reprise.dev/engine (vLLM, SGLang, ...), and pods of Services with it, are
    registered once they are ready; annotations reprise.dev/model, block-size, events-port,
    replay-port, http-port and data-parallel-size say the rest, or the engine is asked.

    \b
    reprise discover --url http://reprise:13333
    """  # noqa: D301
    begin_service(log_level_from(os.environ))
    try:
        from reprise.discovery.kubernetes import run_discovery
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kubernetes_asyncio":
            raise
        text = 'Expected the extra `kubernetes`: pip install "reprise[kubernetes]"'
        raise click.ClickException(text) from error
    try:
        asyncio.run(run_discovery(url, namespace or _own_namespace(), selector, grace, kubeconfig))
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"
