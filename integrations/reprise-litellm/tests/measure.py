"""What the callback is worth before engines of yours: LiteLLM's Router with it and without it, in
turn, the same requests in each pair, and the mean time to the first token of both.

    python tests/measure.py --model llama-3-8b --block-size 16 \
        --engine node-1=http://10.0.0.7:8000 --engine node-2=http://10.0.0.8:8000

The engines are registered with Reprise under these names (`REPRISE_URL`), and say `cached_tokens`.
Prompts are random words behind system prompts that requests share; each run's are its own, so the
caches of runs before hold nothing of them.
"""

import argparse
import asyncio
import os
import random
import statistics
import time
from typing import Any, Final, NamedTuple

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet at its import

import litellm
import openai
from reprise_litellm import RepriseCallback, Settings

OUTPUT_TOKENS: Final = 16
WORD_CHARACTERS: Final = 6
QUESTION_CHARACTERS: Final = 200


class Run(NamedTuple):
    """What came of the requests of one way."""

    ttft_s: list[float]
    prompt_tokens: int
    cached_tokens: int
    failed: int


def words(chance: random.Random, characters: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    count = characters // (WORD_CHARACTERS + 1)
    return " ".join("".join(chance.choices(letters, k=WORD_CHARACTERS)) for _ in range(count))


def requests(given: argparse.Namespace, seed: str, way: str) -> list[list[dict[str, str]]]:
    """Of both ways the same, but for the beginning."""
    chance = random.Random(seed)
    systems = [
        f"{way} {seed} {words(chance, chance.randint(given.characters // 2, given.characters))}"
        for _ in range(given.prompts)
    ]
    weights = [1 / (place + 1) ** 0.7 for place in range(given.prompts)]
    return [
        [
            {"role": "system", "content": chance.choices(systems, weights)[0]},
            {"role": "user", "content": words(chance, QUESTION_CHARACTERS)},
        ]
        for _ in range(given.requests)
    ]


def router(given: argparse.Namespace, callback: RepriseCallback | None) -> litellm.Router:
    manager: Any = litellm.logging_callback_manager
    manager._reset_all_callbacks()
    litellm.callbacks = [] if callback is None else [callback]
    deployments = []
    for name, _, url in (one.partition("=") for one in given.engine):
        params = {"model": f"hosted_vllm/{given.model}", "api_base": f"{url}/v1", "api_key": "none"}
        ours = {"instance_id": name, "model": given.model, "block_size": given.block_size}
        info = {"id": name, "reprise": ours}
        deployments.append({"model_name": "m", "litellm_params": params, "model_info": info})
    return litellm.Router(model_list=deployments, num_retries=0, disable_cooldowns=True)


async def run(given: argparse.Namespace, seed: str, callback: RepriseCallback | None) -> Run:
    way = "without" if callback is None else "with"
    asked = iter(requests(given, seed, way))
    chosen_by, ttft_s, usages, failed = router(given, callback), [], [], 0

    async def client() -> None:
        nonlocal failed
        for messages in asked:
            began, first = time.monotonic(), None
            try:
                stream = await chosen_by.acompletion(
                    model="m",
                    messages=messages,
                    stream=True,
                    max_tokens=OUTPUT_TOKENS,
                    temperature=0,
                    stream_options={"include_usage": True},
                )
                async for chunk in stream:
                    if first is None and chunk.choices and chunk.choices[0].delta.content:
                        first = time.monotonic() - began
                        ttft_s.append(first)
                    if getattr(chunk, "usage", None):
                        usages.append(chunk.usage)
            except openai.OpenAIError:
                failed += 1

    await asyncio.gather(*(client() for _ in range(given.clients)))
    details = [one.prompt_tokens_details for one in usages]
    cached = sum((one.cached_tokens or 0) if one else 0 for one in details)
    return Run(ttft_s, sum(one.prompt_tokens for one in usages), cached, failed)


async def measure(given: argparse.Namespace) -> None:
    callback = RepriseCallback(Settings.of_environment())
    for seed in given.seed:
        pairs: list[tuple[Run, Run]] = []
        for number in range(given.rounds):
            ways: list[RepriseCallback | None] = [None, callback]
            if number % 2:
                ways.reverse()
            runs = {way: await run(given, f"{seed}.{number}", way) for way in ways}
            pairs.append((runs[None], runs[callback]))
        for place, name in enumerate(("without", "with")):
            runs_of = [pair[place] for pair in pairs]
            ttft_ms = 1000 * statistics.mean(statistics.mean(one.ttft_s) for one in runs_of)
            share = sum(one.cached_tokens for one in runs_of) / sum(
                one.prompt_tokens for one in runs_of
            )
            failed = sum(one.failed for one in runs_of)
            text = (
                f"seed {seed}, {name}: TTFT {ttft_ms:.0f} ms, cached {share:.1%}, failed {failed}"
            )
            print(text, flush=True)
        differences = [
            1000 * (statistics.mean(after.ttft_s) - statistics.mean(before.ttft_s))
            for before, after in pairs
        ]
        spread = statistics.stdev(differences) / len(differences) ** 0.5
        print(f"seed {seed}: {statistics.mean(differences):+.0f} ms, +-{spread:.0f}", flush=True)
    print(callback.report.counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--engine", action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--model", required=True)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=4, help="pairs for each seed, two at least")
    parser.add_argument("--requests", type=int, default=48, help="of each way in a round")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=8, help="system prompts that are shared")
    parser.add_argument("--characters", type=int, default=8000, help="of the longest of them")
    given = parser.parse_args()
    given.seed = given.seed or [1, 2, 3]
    asyncio.run(measure(given))


if __name__ == "__main__":
    main()
