"""The registry, and how far each of its publishers is: in topics alone, which bridges own and
replicas write to and read.
"""

from typing import Final

from logs.declaration import LogDeclaration
from schemas.topics import CURSORS_TOPIC, REGISTRY_TOPIC

REGISTRY: Final = LogDeclaration(name="the registry", topics=(REGISTRY_TOPIC, CURSORS_TOPIC))
