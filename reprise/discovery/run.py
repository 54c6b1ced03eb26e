"""`reprise discover`, put together: the API server, what is followed of it, and the end."""

import asyncio
import logging
import signal
from contextlib import suppress

from reprise.discovery.api_server import ApiServer, ApiSettings
from reprise.discovery.membership import Membership
from reprise.discovery.object_follower import ObjectFollower
from reprise.discovery.registrar import PodRegistrar
from reprise.discovery.service import MembershipSink, PodComplaints, PodDiscovery, readers

logger = logging.getLogger(__name__)


async def run_discovery(
    url: str, settings: ApiSettings, namespace: str, selector: str, grace_s: float
) -> None:
    """Until SIGINT or SIGTERM.

    Args:
        namespace: whose pods.
        selector: of their labels, and of EndpointSlices.
        grace_s: see `Membership`.

    Raises:
        ConfigurationError: the API server's authority cannot be read.
    """
    changed = asyncio.Event()
    membership, said = Membership(grace_s), PodComplaints()
    async with ApiServer(settings, namespace, selector) as server:
        followers = [
            ObjectFollower(
                source, server, MembershipSink(source, read, membership, said, changed.set)
            )
            for source, read in readers().items()
        ]
        discovery = PodDiscovery(namespace, membership, followers, PodRegistrar(url), changed, said)
        logger.info("Following pods of namespace %s with %s for %s", namespace, selector, url)
        running = asyncio.ensure_future(discovery.run())
        loop = asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, running.cancel)
        with suppress(asyncio.CancelledError):
            await running
