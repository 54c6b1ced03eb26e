"""A service goes on from what each earlier version wrote to its disk: the archives of
`tests/unit/test_older_formats.py`, whose formats are read there.
"""

from pathlib import Path

import pytest

from tests.processes import Service
from tests.unit.test_older_formats import ARCHIVE, MADE, expected_in, extracted, topics_in
from tests.written import ask


def test_a_service_goes_on_from_the_data_directory(tmp_path: Path) -> None:
    written = extracted(ARCHIVE, tmp_path)
    topics = topics_in(written)
    with Service(written / "data") as service:
        digest = service.digest()
        assert int(digest["position"].removeprefix("0:")) >= len(topics.events) - 1
        names = ("tenant_id", "model_name", "lora_name", "block_size", "additional_salt")
        got = [
            (
                (*(context[name] for name in names), context["instance_id"]),
                int(context["digest"], 16),
                context["entries"],
            )
            for context in digest["contexts"]
        ]
        assert sorted(got) == [one for one in topics.expected if one[2]]
        _, services = service.get("/services")
        assert sorted(one["InstanceID"] for one in services["services"]) == topics.registered
        assert "resume" in service.log(), "the table was not used"


@pytest.mark.parametrize("archive", sorted(MADE), ids=lambda path: path.name)
def test_a_service_goes_on_with_all_that_it_kept(archive: Path, tmp_path: Path) -> None:
    made = extracted(archive, tmp_path)
    expected = expected_in(made)
    with Service(made / "data") as service:
        assert "resume" in service.log(), "the table was not used"
        assert service.digest()["contexts"] == expected.contexts
        assert service.get("/gaps")[1]["publishers"] == expected.publishers
        _, listed = service.get("/services")
        assert sorted(one["InstanceID"] for one in listed["services"]) == expected.services
        for one in expected.past:
            assert ask(service, one.query, one.position)[0] == one.document
