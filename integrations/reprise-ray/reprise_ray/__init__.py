"""Ray Serve sends each request to the replica that Reprise names: see the README.

`request_router_config: {request_router_class: "reprise_ray:RepriseRouter"}` of a deployment.
"""

from .registration import register_replica
from .router import RepriseRouter

__all__ = ["RepriseRouter", "register_replica"]
__version__ = "0.2.0"
