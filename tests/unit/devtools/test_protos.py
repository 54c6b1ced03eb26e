"""What is committed of the protocol buffers is what their compiler makes of them."""

from pathlib import Path

import pytest

from devtools import protos


def test_the_modules_are_those_of_the_definitions() -> None:
    assert protos.stale() == []


def test_a_module_of_another_definition_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = [one for one in protos.FOLDERS if one.parent.name == "query_api"]
    (tmp_path / "proto").symlink_to(folder / "proto")
    (tmp_path / "messages").mkdir()
    monkeypatch.setattr(protos, "FOLDERS", (tmp_path,))
    protos.compile_to(tmp_path / "messages", tmp_path / "proto")
    assert protos.stale() == []
    (tmp_path / "messages" / "radix_index_pb2.py").write_text("")
    (tmp_path / "messages" / "old_pb2.py").write_text("")
    assert protos.stale() == ["old_pb2.py", "radix_index_pb2.py"]


def test_a_definition_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.proto").write_text("no")
    with pytest.raises(RuntimeError, match=r"x\.proto"):
        protos.compile_to(tmp_path, tmp_path)
