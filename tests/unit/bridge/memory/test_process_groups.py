"""The process group in a segment's name."""

import os

import pytest

from bridge.memory.process_groups import group_is_there, group_of
from tests.memory_segments import SegmentProcess


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("kvcached_vLLM_4711", 4711),
        ("kvcached_SGLang_4711_3", 4711),
        ("kvcached_proc_4711_99_g12", 4711),
        ("kvcached_engine_2", 2),
        ("kvcached_engine_2147483647", 2**31 - 1),
        ("kvcached_engine_2147483648", None),
        ("kvcached_engine_1", None),  # of every container
        ("kvcached_engine_0", None),
        ("kvcached_engine_-5", None),
        ("kvcached_vLLM_4711_100", None),
        ("kvcached_vLLM_", None),
        ("kvcached_vLLM_4711 ", None),
        ("kvcached_\u0664\u0662_4711", None),
        ("kvcached_vLLM_\u0664\u0662", None),
        ("my_kvcached_vLLM_4711", None),
        ("anything", None),
    ],
)
def test_the_group_is_read_off_names_of_its_form_alone(name: str, group: int | None) -> None:
    assert group_of(name) == group


def test_a_group_is_there_for_as_long_as_one_of_its_processes() -> None:
    assert group_is_there(os.getpgid(0))


def test_a_group_that_has_ended_is_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    writer = SegmentProcess(tmp_path_factory.mktemp("shm"))
    group = group_of(writer.name)
    assert group == writer.process.pid
    assert group_is_there(group)
    writer.kill()
    assert not group_is_there(group)
