"""A registered publisher, and the rules by which one may join the others.

`/register`, the configuration file, the registry topic and the log all hold what is here.
"""

from collections.abc import Mapping
from typing import Annotated, Final, NewType

import msgspec

from schemas.errors import RegistrationConflictError, RegistrationError
from schemas.identities import (
    DEFAULT_TENANT,
    BlockSize,
    Name,
    PublisherKey,
    Rank,
    StreamKey,
    Text,
)
from schemas.limits import KIND_CHARS_MAX, PUBLISHERS_MAX
from schemas.positions import LogOffset

PublisherKind = NewType("PublisherKind", str)
"""The wire protocol of a publisher, as Mooncake's `/register` spells it: `vLLM`, `SGLang`. Each
is a module of `bridge/wire/`.
"""


POOLS: Final = frozenset({PublisherKind("Mooncake")})
"""Kinds that publish what a pool holds that every instance of the scope reads."""


class HashProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine hashes blocks. Conductor's clients must send it; Reprise hashes tokens itself
    and keeps it only to show it again in `/services`.
    """

    strategy: Text
    algorithm: Text
    python_hash_seed: Text
    index_projection: Text


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One publisher, as registered. Field names are those of the log; `/register` has its own
    spelling.

    Attributes:
        endpoint: ZMQ address of the PUB socket, e.g. `tcp://10.0.0.7:5557`.
        replay_endpoint: ZMQ address of the ROUTER socket that replays, or "".
        lora_name: the adapter of events that name none; "" for the base model.
    """

    endpoint: Name
    kind: Annotated[PublisherKind, msgspec.Meta(min_length=1, max_length=KIND_CHARS_MAX)]
    model_name: Name
    instance_id: Name
    block_size: BlockSize
    dp_rank: Rank = 0
    tenant_id: Text = DEFAULT_TENANT
    lora_name: Text = ""
    additional_salt: Text = ""
    replay_endpoint: Text = ""
    hash_profile: HashProfile | None = None

    @property
    def is_pool(self) -> bool:
        """Whether it is a pool that all instances share, and no instance itself."""
        return self.kind in POOLS

    @property
    def stream(self) -> StreamKey:
        """The key of this publisher's records."""
        return StreamKey(
            self.tenant_id, self.model_name, self.block_size, self.additional_salt, self.instance_id
        )

    @property
    def publisher(self) -> PublisherKey:
        """The identity under which its events are folded."""
        return PublisherKey(self.stream, self.dp_rank)

    @property
    def service_key(self) -> str:
        """Conductor's name for a service, `instance|tenant|rank`: what `/unregister` reports."""
        return service_key(self.tenant_id, self.instance_id, self.dp_rank)

    def matches(
        self,
        *,
        tenant_id: str,
        instance_id: str,
        dp_rank: int,
        model_name: str | None,
        block_size: int | None,
    ) -> bool:
        """Whether `/unregister` of these means this one; None matches any."""
        return (
            (self.tenant_id, self.instance_id, self.dp_rank) == (tenant_id, instance_id, dp_rank)
            and model_name in (None, self.model_name)
            and block_size in (None, self.block_size)
        )


class Registered(msgspec.Struct, frozen=True):
    """A live registration and the offset of the record that made it, which retention must keep."""

    registration: Registration
    offset: LogOffset


def service_key(tenant_id: str, instance_id: str, dp_rank: int) -> str:
    """Conductor's name for a service."""
    return f"{instance_id}|{tenant_id}|{dp_rank}"


def is_new(registration: Registration, registered: Mapping[PublisherKey, Registration]) -> bool:
    """Whether the publisher is not registered yet. Cost O(registered).

    Raises:
        RegistrationConflictError: its name or its endpoint is that of a different registration.
        RegistrationError: one more than the bound.
    """
    same = registered.get(registration.publisher)
    if same == registration:
        return False
    if same is not None:
        raise RegistrationConflictError(
            f"conflicting registration for service key: {registration.service_key}"
        )
    if any(other.endpoint == registration.endpoint for other in registered.values()):
        raise RegistrationConflictError(
            f"conflicting active registration for endpoint: {registration.endpoint}"
        )
    if len(registered) >= PUBLISHERS_MAX:
        raise RegistrationError(f"Expected at most {PUBLISHERS_MAX} publishers, got one more")
    return True
