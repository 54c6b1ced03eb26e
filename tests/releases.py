"""Released engines as parameters of tests."""

import pytest

from devtools.publishers.releases import Release


def fetched(*releases: Release) -> list[object]:
    """These releases, each skipped by name where it has not been fetched."""
    return [
        pytest.param(
            release,
            id=str(release),
            marks=pytest.mark.skipif(
                not release.is_fetched, reason=f"no {release}: `make engines` fetches it"
            ),
        )
        for release in releases
    ]
