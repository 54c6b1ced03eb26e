"""In the place of what LMCache imports and its tried code does not use: torch and the like."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class Anything(type):
    """Of a class any attribute is there, and a device is not."""

    def __getattr__(cls, name: str) -> Any:
        if name == "__members__":
            return {}
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("is_available", "is_initialized"):
            return lambda *_: False
        return Anything(name, (), {"__init__": lambda self, *_, **__: None})

    def __or__(cls, other: Any) -> Any:
        return object

    def __ror__(cls, other: Any) -> Any:
        return object


class Nothing(types.ModuleType):
    """A module of which any name is a class without content."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("is_available", "is_initialized"):
            return lambda *_: False
        if name == "njit":
            return lambda *given, **_: given[0] if given else lambda made: made
        return Anything(name, (), {"__init__": lambda self, *_, **__: None})


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """In the place of what is far larger than what is tried here.

    Args:
        names: of these modules.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `MetaPathFinder`."""
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self._names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """See `Loader`."""
        return Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """See `Loader`: there is nothing to run."""


def leave_out(absent: Sequence[str], bare: Sequence[str]) -> None:
    """Has LMCache imported without these.

    Args:
        absent: modules of which any name is a class without content.
        bare: packages of LMCache without what they import at once.
    """
    sys.meta_path.insert(0, Absent(absent))
    [root] = importlib.import_module("lmcache").__path__
    for name in bare:
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [f"{root}/{name.partition('.')[2].replace('.', '/')}"]
