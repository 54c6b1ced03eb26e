"""What the released cache manager of a vLLM publishes of hybrid models, and how much of a prompt it
then finds: `tests/vectors/hybrid/vllm-<version>.jsonl`.

    python -m devtools.publishers.hybrid FOLDER VERSION

FOLDER has that version's wheel, unpacked. Its `vllm/v1/core` runs as released; of the rest what it
imports is left out, for neither its events nor its hits depend on tensors. Each line is a model
(`groups`: kind, and window where it has one), and what happens in it: `events` is a batch as
msgpack, `hits` how many tokens of each prompt the cache then serves, at most the whole prompt.
"""

import importlib.machinery
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock

import msgspec

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = 4
_RELEASED: Final = (
    "vllm.v1.core",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.utils.math_utils",
    "vllm.utils.hashing",
    "vllm.v1.request",
    "vllm.distributed.kv_events",
)
MODELS: Final[Sequence[Sequence[tuple[str, int]]]] = (
    (("full", 0), ("window", 13)),
    (("window", 8), ("full", 0), ("window", 8), ("window", 17)),
    (("full", 0), ("mamba", 0)),
    (("mamba", 0), ("mamba", 0), ("full", 0), ("window", 6)),
)


class _Named(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _LeftOut(ModuleType):
    """A module of which nothing is called."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made: object = _Named(name, (), {}) if name[:1].isupper() else MagicMock(name=name)
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds the rest of the engine, or what is not installed here."""

    def __init__(self, folder: Path, *, is_last: bool) -> None:
        self._folder, self._is_last = folder, is_last

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_engine = fullname.partition(".")[0] == "vllm"
        is_released = any(fullname == name or fullname.startswith(f"{name}.") for name in _RELEASED)
        if is_released or not (is_engine or self._is_last):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _LeftOut(spec.name)
        module.__path__ = [str(self._folder / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _request(number: int, tokens: list[int], hasher: Callable[[Any], list[bytes]]) -> Any:
    request = SimpleNamespace(
        request_id=str(number),
        num_tokens=len(tokens),
        num_prompt_tokens=len(tokens),
        num_computed_tokens=0,
        num_output_placeholders=0,
        all_token_ids=tokens,
        prompt_token_ids=tokens,
        mm_features=[],
        lora_request=None,
        cache_salt=None,
        prompt_embeds=None,
        session_id=None,
        skip_reading_prefix_cache=False,
        num_preemptions=0,
        block_hashes=[],
        resumable=False,
        status=None,
        num_in_flight_tokens=0,
        shared_prefix_boundary=0,
    )
    request.block_hashes = hasher(request)
    return request


def _steps(groups: Sequence[tuple[str, int]], rng: random.Random) -> Iterator[dict[str, object]]:
    core = "vllm.v1.core."
    sha256 = import_module("vllm.utils.hashing").sha256
    kv_cache_utils = import_module(core + "kv_cache_utils")
    managers = import_module(core + "single_type_kv_cache_manager")
    specs = import_module("vllm.v1.kv_cache_interface")

    def spec(kind: str, window: int) -> Any:
        heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
        if kind == "mamba":
            return specs.MambaSpec(
                block_size=BLOCK, shapes=((1,),), dtypes=("float32",), mamba_cache_mode="align"
            )
        if kind == "window":
            return specs.SlidingWindowSpec(block_size=BLOCK, sliding_window=window, **heads)
        return specs.FullAttentionSpec(block_size=BLOCK, **heads)

    managers.register_all_kvcache_specs(None)
    kv_cache_utils.init_none_hash(sha256)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    config = specs.KVCacheConfig(
        num_blocks=48 + 12 * len(groups),
        kv_cache_tensors=[],
        kv_cache_groups=[
            specs.KVCacheGroupSpec([str(number)], spec(*group))
            for number, group in enumerate(groups)
        ],
    )
    manager = import_module(core + "kv_cache_manager").KVCacheManager(
        config, 4096, BLOCK, BLOCK, max_in_flight_tokens=16, enable_kv_cache_events=True
    )
    prompts: list[list[int]] = [[]]
    while len(prompts) < 8:
        old = rng.choice(prompts)
        begun = old[: rng.randrange(len(old) + 1)]
        more = [rng.randrange(1000) for _ in range(rng.randrange(6, 50))]
        prompts.append((begun + more)[:96])
    batch_of = import_module("vllm.distributed.kv_events").KVEventBatch
    yield {"prompts": prompts[1:]}
    for number in range(40):
        if number == 30:
            assert manager.reset_prefix_cache()
        else:
            request = _request(number, rng.choice(prompts[1:]), hasher)
            found, cached, _ = manager.get_computed_blocks(request)
            done = 0
            while done < request.num_tokens:
                step = min(4 * BLOCK, request.num_tokens - done - (0 if done else cached))
                given: dict[str, Any] = {}
                if not done:
                    given = {"num_new_computed_tokens": cached, "new_computed_blocks": found}
                    done = cached
                if manager.allocate_slots(request, step, **given) is None:
                    break
                done += step
                request.num_computed_tokens = done
                manager.new_step_starts()
            manager.free(request)
        events = manager.take_events()
        batch = batch_of(ts=float(number), events=events, data_parallel_rank=0)
        hits = []
        for tokens in prompts[1:]:
            asked = _request(-1, tokens, hasher)
            coordinator = manager.coordinator
            hits.append(coordinator.find_longest_cache_hit(asked.block_hashes, len(tokens))[1])
        yield {"events": msgspec.msgpack.encode(batch).hex(), "hits": hits}


def main(folder: str, version: str) -> None:
    """Writes the file."""
    sys.meta_path.insert(0, _Finder(Path(folder), is_last=False))
    sys.meta_path.append(_Finder(Path(folder), is_last=True))
    sys.path.append(folder)
    lines = [
        {"groups": groups, "steps": list(_steps(groups, random.Random(number)))}
        for number, groups in enumerate(MODELS)
    ]
    path = ROOT / "tests" / "vectors" / "hybrid" / f"vllm-{version}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{path}: {len(lines)} models")


if __name__ == "__main__":
    main(*sys.argv[1:])
