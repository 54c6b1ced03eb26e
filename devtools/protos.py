"""`python -m devtools.protos`: the `messages` beside each folder `proto`.

With `--check` it writes nothing, and fails where they are not what would be written. The compiler
is grpcio-tools at the version of `constraints.txt`, so the same files give the same modules.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

import grpc_tools
from grpc_tools import protoc

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = (
    ROOT / "bridge" / "grpc",
    ROOT / "query_api" / "grpc",
    ROOT / "gateway" / "picker",
)
"""Each has `proto`, and `messages` made of it."""
WELL_KNOWN: Final = Path(grpc_tools.__file__).parent / "_proto"


def compile_to(directory: Path, protos: Path) -> None:
    """Writes the modules and their types.

    Raises:
        RuntimeError: the compiler refuses a file; it has said why.
    """
    names = sorted(path.name for path in protos.glob("*.proto"))
    paths = [f"-I{protos}", f"-I{WELL_KNOWN}"]
    options = [*paths, f"--python_out={directory}", f"--pyi_out={directory}", *names]
    if protoc.main(["protoc", *options]):
        raise RuntimeError(f"Expected protoc to compile {', '.join(names)}")


def stale() -> list[str]:
    """Names of modules that are not what the compiler writes now, or of none of its files."""
    return [name for folder in FOLDERS for name in _stale(folder)]


def _stale(folder: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        compile_to(Path(directory), folder / "proto")
        written = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    present = {path.name: path.read_bytes() for path in (folder / "messages").glob("*_pb2.*")}
    names = written.keys() | present.keys()
    return sorted(name for name in names if written.get(name) != present.get(name))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what is stale")
    if not parser.parse_args().check:
        for folder in FOLDERS:
            compile_to(folder / "messages", folder / "proto")
        return
    if names := stale():
        sys.exit(f"Stale: {', '.join(names)}. Run: python -m devtools.protos")


if __name__ == "__main__":
    main()
