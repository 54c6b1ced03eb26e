"""LiteLLM sends each request to the engine that Reprise names: see the README.

`litellm.callbacks = [reprise_litellm.callback]`, or `callbacks: ["reprise_litellm.callback"]` in
the proxy's `litellm_settings`. The settings are read from the environment.
"""

from reprise_litellm.routing import RepriseCallback
from reprise_litellm.settings import Settings

__all__ = ["RepriseCallback", "Settings", "callback"]
__version__ = "0.2.0"

callback = RepriseCallback(Settings.of_environment())
