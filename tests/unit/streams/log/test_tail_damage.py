"""What `reprise tail` says of an embedded log of which a file is gone."""

from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from schemas.errors import DamagedError
from streams.log.record_lines import StreamFilter
from streams.log.tail import TailOptions, tail_embedded
from tests.building import registered_record, registration


@pytest.mark.parametrize("which", [0, -1], ids=["the first file", "the last file"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_log_of_which_a_file_is_gone_is_damaged_and_not_short(
    tmp_path: Path, which: int, follow: bool
) -> None:
    for number in range(3):
        log = EmbeddedLog(tmp_path / "log", segment_bytes=1)  # each record has a file of its own
        log.append([registered_record(registration(f"engine-{number}"))])
        log.sync()
        log.close()
    files = sorted((tmp_path / "log").glob("*.rec"))
    assert len(files) > 1
    options = TailOptions(
        wanted=StreamFilter(None, None, None),
        follow=follow,
        from_beginning=True,
        limit=3,
        compact=False,
    )
    lines: list[bytes] = []
    tail_embedded(tmp_path, options, lines.append)
    assert len(b"".join(lines).splitlines()) == 3
    files[which].unlink()
    with pytest.raises(DamagedError, match=r"\.rec is damaged.*reprise repair"):
        tail_embedded(tmp_path, options, lines.append)
