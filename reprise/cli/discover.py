"""`reprise discover`."""

import asyncio
import os

import click

from console.asking import url_option
from console.param_types import Amount
from reprise.cli.process import begin_service
from reprise.discovery.api_server import SERVICE_ACCOUNT, ApiSettings, pod_settings
from reprise.discovery.run import run_discovery
from reprise.settings import log_level_from


@click.command()
@url_option("Where any replica answers. REPRISE_KEY is its key, with the rights read and register.")
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
    help="For this many seconds a pod that is gone stays registered, unless another takes its"
    " name.",
)
@click.option(
    "--api-server",
    envvar="REPRISE_API_SERVER",
    show_envvar=True,
    metavar="URL",
    help="As `kubectl proxy` makes one: http://127.0.0.1:8001.  [default: the pod's own, with its"
    " token]",
)
def discover(
    url: str, namespace: str | None, selector: str, grace: float, api_server: str | None
) -> None:
    """Register the engines of a Kubernetes namespace, and unregister those that are gone.

    Pods with the label reprise.dev/engine (vLLM, SGLang, ...), and pods of Services with it, are
    registered once they are ready; annotations reprise.dev/model, block-size, events-port,
    replay-port, http-port and data-parallel-size say the rest, or the engine is asked.

    \b
    reprise discover --url http://reprise:13333
    """  # noqa: D301
    begin_service(log_level_from(os.environ))
    settings = ApiSettings(api_server) if api_server else pod_settings()
    asyncio.run(run_discovery(url, settings, namespace or _own_namespace(), selector, grace))


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"
