"""Which runs a comparison has: all policies, and what is swept."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from lab.whatif.policies.table import ALL_POLICIES, parse
from lab.whatif.setup import UNBOUNDED, Setup, parse_capacity
from lab.whatif.sweep import Job
from routing.costs import UNLIMITED
from routing.policies.table import DEFAULT_POLICY
from schemas.errors import ConfigurationError

WHATIF_RUNS_MAX: Final = 10_000  # of one command

NO_FETCH: Final = "algorithm-1:fetch=off"
FETCHING: Final = "algorithm-1"
LOAD_ALONE: Final = "least-loaded"

COMPARED: Final = ("round-robin", LOAD_ALONE, NO_FETCH, FETCHING, DEFAULT_POLICY)
"""Policies of a comparison that names none: two that know no prefixes, the strongest one known with
fetches between engines and without them, and the service's."""

BLIND: Final = ("round-robin", "random", LOAD_ALONE)
"""Policies that do not look at prefixes."""

ALL: Final = (
    "round-robin",
    "random",
    LOAD_ALONE,
    "longest-prefix",
    "weighted",
    NO_FETCH,
    FETCHING,
    "least-delay",
    "wait-and-work",
    "blocks",
    "lmetric",
    "sticky",
    "two-tier",
    "loadaware",
    "kvaware",
    "aibrix",
)
"""Every one in the table, `algorithm-1` twice."""

SWEPT: Final = (LOAD_ALONE, FETCHING, DEFAULT_POLICY)
"""Policies of a sweep where none is named; the first one does not ask the index."""

POOL: Final = "shared pool"
IDEAL: Final = "ideal"
ONE_CACHE: Final = "one cache"
NOT_CHOSEN: Final = (POOL, IDEAL, ONE_CACHE)
"""Labels of what no policy can bring about: bounds to compare with."""
POLICIES_GROUP: Final = "policies"
CAPACITY_GROUP: Final = "capacity"
USUAL: Final = "usual"


class Sweep(NamedTuple):
    """One axis with its values, as texts."""

    axis: str
    values: tuple[str, ...]


USUAL_SWEEPS: Final = (
    Sweep("capacity", ("300k", "1M", "3M", "10M", "30M", "unbounded")),
    Sweep("delay", ("0", "1", "5", "20", "60", "120")),
    Sweep("loss", ("0", "0.01", "0.05", "0.2")),
    Sweep("weighted.alpha", ("0", "0.1", "0.25", "0.5", "1", "2", "4")),
    Sweep("one-cache", ("300k", "1M", "3M", "10M", "20M", "30M", "50M", "unbounded")),
)
"""What `usual` stands for."""


LOOK_FACTORS: Final = (1 / 9, 1 / 3, 1, 3)
"""Capacities of the look at the cache, in those of the comparison; unbounded ones follow."""

LOOK_BLOCKS_MAX: Final = 20_000_000  # read by a look at the cache, times nodes: half a minute


def is_worth_a_look(blocks: int, nodes: int) -> bool:
    """Whether a look at the cache ends soon enough for a person who has not asked for it."""
    return blocks * nodes <= LOOK_BLOCKS_MAX


def parse_sweeps(texts: Sequence[str]) -> list[Sweep]:
    """Each as `parse_sweep` reads it; `usual` are USUAL_SWEEPS."""
    return [
        sweep
        for text in texts
        for sweep in (USUAL_SWEEPS if text == USUAL else (parse_sweep(text),))
    ]


def parse_sweep(text: str) -> Sweep:
    """`AXIS=VALUE,VALUE...`.

    Raises:
        ConfigurationError: it is not of that form, or there is no such axis.
    """
    axis, _, values = text.partition("=")
    sweep = Sweep(axis.strip(), tuple(filter(None, (one.strip() for one in values.split(",")))))
    if not sweep.values:
        raise ConfigurationError(f"Expected a sweep as `delay=0,1,120`, got: {text}")
    _setter_of(sweep.axis)
    return sweep


def plan(
    base: Setup,
    *,
    block_size: int,
    workloads: int,
    policies: Sequence[str] = (),
    every: bool = False,
    sweeps: Sequence[Sweep] = (),
    look_at: Sequence[int] = (),
) -> list[Job]:
    """All runs, in the order of a report: for each workload the comparison, then the sweeps.

    Args:
        base: what they have in common.
        block_size: tokens for each block.
        workloads: how many there are.
        policies: to compare, also in sweeps; none for COMPARED, and SWEPT in sweeps.
        every: whether none stands for all policies instead of COMPARED.
        sweeps: what else to run.
        look_at: workloads of which some capacities are run, too, where no sweep has them.

    Raises:
        ConfigurationError: a policy or a value that cannot be, or too many runs.
    """
    policies = [_named(policy) for policy in policies]
    looks = all(sweep.axis != CAPACITY_GROUP for sweep in sweeps)
    jobs: list[Job] = []
    for workload in range(workloads):
        compared = policies or (_all_policies() if every else COMPARED)
        jobs += _comparison(base, workload, compared)
        for sweep in sweeps:
            jobs += _swept(base, workload, sweep, policies, block_size)
        if looks and workload in look_at:
            jobs += _look(base, workload, compared, block_size)
    if len(jobs) > WHATIF_RUNS_MAX:
        raise ConfigurationError(f"Expected at most {WHATIF_RUNS_MAX:,} runs, got: {len(jobs):,}")
    return jobs


def _named(policy: str) -> str:
    """The policy as it is called, without a colon that nothing follows."""
    name = policy.partition(":")[0]
    if "," in name:
        raise ConfigurationError(
            f"Expected one policy for each --policy, got: {policy}; give --policy once for each"
        )
    parse(policy)
    return policy.removesuffix(":")


def _look(base: Setup, workload: int, policies: Sequence[str], block_size: int) -> Iterator[Job]:
    """Capacities around the one that is compared, of the default policy or else the first."""
    if not base.gpu_blocks:
        return
    policy = DEFAULT_POLICY if DEFAULT_POLICY in policies else policies[0]
    blocks = sorted({max(1, round(base.gpu_blocks * factor)) for factor in LOOK_FACTORS})
    values = (*(f"{count}blocks" for count in blocks), "unbounded")
    for job in _swept(base, workload, Sweep(CAPACITY_GROUP, values), [policy], block_size):
        in_tokens = job.x if job.value == "unbounded" else round(job.x)
        yield job._replace(value=tokens_said(in_tokens))


def tokens_said(tokens: float) -> str:
    """A number of tokens as `--capacity` takes it, rounded: `3M`, `12.3k`; `unbounded`."""
    if math.isinf(tokens):
        return "unbounded"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if tokens >= 0.9995 * size:
            return f"{float(f'{tokens / size:.3g}'):g}{unit}"
    return f"{tokens:.0f}"


def _all_policies() -> tuple[str, ...]:
    """Policies that were added to the table come after those that have a place."""
    named = {policy.partition(":")[0] for policy in ALL}
    return (*ALL, *(name for name in ALL_POLICIES if name not in named))


def _comparison(base: Setup, workload: int, policies: Sequence[str]) -> Iterator[Job]:
    for policy in policies:
        yield Job(workload, policy, _with(base, policy=policy))
    if base.pool_blocks == 0:
        if base.gpu_blocks and base.cpu_blocks is not UNBOUNDED:
            total = base.nodes * (base.gpu_blocks + base.cpu_blocks)
            yield Job(workload, POOL, _pooled(base, total))
        yield Job(workload, IDEAL, _ideal(base))


def _pooled(base: Setup, blocks: int | None) -> Setup:
    """One pool in place of the nodes' own caches; then only their waits differ."""
    return _with(base, policy=LOAD_ALONE, gpu_blocks=0, cpu_blocks=0, pool_blocks=blocks)


def _ideal(base: Setup) -> Setup:
    """The same without bound, and read as fast as a node's own GPU: no engines can do better."""
    costs = msgspec.structs.replace(base.costs, pool_tokens_per_s=UNLIMITED)
    return _with(_pooled(base, UNBOUNDED), costs=costs)


def _swept(
    base: Setup, workload: int, sweep: Sweep, policies: Sequence[str], block_size: int
) -> Iterator[Job]:
    axis = sweep.axis
    set_value = _setter_of(axis)
    if axis == "one-cache":
        policies = ("round-robin",)  # there is no choice
    elif not policies:
        policies = (axis.partition(".")[0],) if "." in axis else SWEPT[axis in _OF_THE_INDEX :]
    elif "." in axis:
        name = axis.partition(".")[0]
        policies = _of_parameter(name, sweep, policies)
    for policy in policies:
        for number, value in enumerate(sweep.values):
            try:
                setup = set_value(_with(base, policy=policy), value, block_size)
                x = _place_of(axis, value, number, block_size)
            except (ValueError, msgspec.ValidationError) as error:
                raise ConfigurationError(
                    f"Expected a value for the sweep of {axis}, got: {value}: {error}"
                ) from error
            label = ONE_CACHE if axis == "one-cache" else policy
            yield Job(workload, label, setup, axis, value, x)


def _of_parameter(name: str, sweep: Sweep, policies: Sequence[str]) -> Sequence[str]:
    """Which policies have the parameter; none of those that are named for a usual sweep."""
    having = tuple(one for one in policies if one.partition(":")[0] == name)
    if having or sweep in USUAL_SWEEPS:
        return having
    raise ConfigurationError(
        f"Expected --policy {name} beside --sweep {sweep.axis}, got: {', '.join(policies)}"
    )


def _place_of(axis: str, value: str, number: int, block_size: int) -> float:
    """Where a value stands on its axis; words stand in their order."""
    if axis in _IN_WORDS:
        return float(number)
    if axis not in _CAPACITIES:
        return float(value) if value not in ("on", "off") else float(value == "on")
    blocks = parse_capacity(value, block_size)
    return float("inf") if blocks is None else float(blocks * block_size)


def _with(setup: Setup, **values: object) -> Setup:
    """The setup with other values, checked."""
    return msgspec.convert(
        {**msgspec.structs.asdict(setup), **values}, Setup, strict=False, from_attributes=True
    )


Setter = Callable[[Setup, str, int], Setup]


def _field(name: str) -> Setter:
    return lambda setup, value, block_size: _with(setup, **{name: value})


def _switch(name: str) -> Setter:
    words = {"on": "true", "off": "false"}
    return lambda setup, value, block_size: _with(setup, **{name: words.get(value, value)})


def _capacity(name: str) -> Setter:
    return lambda setup, value, block_size: _with(
        setup, **{name: parse_capacity(value, block_size)}
    )


def _one_cache(setup: Setup, value: str, block_size: int) -> Setup:
    blocks = parse_capacity(value, block_size)
    return _with(setup, nodes=1, gpu_blocks=blocks, cpu_blocks=0, pool_blocks=0)


AXES: Final[Mapping[str, Setter]] = {
    CAPACITY_GROUP: _capacity("gpu_blocks"),
    "cpu-capacity": _capacity("cpu_blocks"),
    "pool-capacity": _capacity("pool_blocks"),
    "one-cache": _one_cache,
    "nodes": _field("nodes"),
    "rate": _field("rate"),
    "delay": _field("index_delay_s"),
    "loss": _field("index_loss"),
    "index": _field("index"),
    "decisions": _field("decisions_s"),
    "sessions": _switch("sessions"),
    "slo-ttft": _field("slo_ttft_s"),
    "slo-tbt": _field("slo_tbt_s"),
    "load-age": _field("load_age_s"),
    "estimate-error": _field("estimate_error"),
    "act": _field("act_s"),
    "decoders": _field("decoders"),
}
"""What can be swept besides the parameters of policies, by name."""

_OF_THE_INDEX: Final = ("delay", "loss", "index", "decisions", "sessions")
_IN_WORDS: Final = ("index",)
_CAPACITIES: Final = ("capacity", "cpu-capacity", "pool-capacity", "one-cache")


def _setter_of(axis: str) -> Setter:
    if axis in AXES:
        return AXES[axis]
    name, dot, parameter = axis.partition(".")
    if dot and name in ALL_POLICIES:
        known = [field.name for field in msgspec.structs.fields(ALL_POLICIES[name].parameters)]
        if parameter in known:
            return lambda setup, value, block_size: _with(
                setup, policy=_with_parameter(setup.policy, parameter, value)
            )
        raise ConfigurationError(
            f"Expected a parameter of {name} of {', '.join(known) or 'none'}, got: {parameter}"
        )
    raise ConfigurationError(
        f"Expected a sweep of {', '.join(AXES)} or POLICY.PARAMETER, got: {axis}"
    )


def _with_parameter(policy: str, parameter: str, value: str) -> str:
    name, _, rest = policy.partition(":")
    kept = [one for one in rest.split(",") if one and one.partition("=")[0] != parameter]
    spec = f"{name}:{','.join([*kept, f'{parameter}={value}'])}"
    parse(spec)
    return spec
