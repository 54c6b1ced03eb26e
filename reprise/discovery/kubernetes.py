"""`reprise discover`, put together: the client of the API server, what it follows, and its end."""

import asyncio
import logging
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

from kubernetes_asyncio import client, config

from reprise.discovery.cluster import Follower
from reprise.discovery.membership import Membership, Source
from reprise.discovery.registrar import Registrar
from reprise.discovery.service import Discovery, Said, Told, readers
from schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)


async def run_discovery(
    url: str, namespace: str, selector: str, grace_s: float, kubeconfig: Path | None
) -> None:
    """Until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: nothing says how to reach the API server.
    """
    settings = await _configuration(kubeconfig)
    changed = asyncio.Event()
    membership, said = Membership(grace_s), Said()
    async with client.ApiClient(settings) as api:
        calls = {
            Source.PODS: client.CoreV1Api(api).list_namespaced_pod,
            Source.SLICES: client.DiscoveryV1Api(api).list_namespaced_endpoint_slice,
        }
        followers = [
            Follower(
                source.value,
                partial(calls[source], namespace),
                selector,
                Told(source, read, membership, said, changed.set),
            )
            for source, read in readers().items()
        ]
        discovery = Discovery(namespace, membership, followers, Registrar(url), changed, said)
        logger.info("Following pods of namespace %s with %s for %s", namespace, selector, url)
        running = asyncio.ensure_future(discovery.run())
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, running.cancel)
        with suppress(asyncio.CancelledError):
            await running


async def _configuration(kubeconfig: Path | None) -> client.Configuration:
    settings = client.Configuration()
    try:
        if kubeconfig is None:
            with suppress(config.ConfigException):
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
                return settings
        await config.load_kube_config(
            config_file=None if kubeconfig is None else str(kubeconfig),
            client_configuration=settings,
        )
    except (config.ConfigException, OSError, ValueError) as error:
        raise ConfigurationError(
            f"Expected to run in a pod, or a kubeconfig that can be used: {error}"
        ) from error
    return settings
