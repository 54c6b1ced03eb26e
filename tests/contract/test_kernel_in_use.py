import os

import pytest

from streams.kernel import native_available, open_kernel


@pytest.mark.skipif(
    os.environ.get("CI") != "true", reason="a machine without Rust may use the reference kernel"
)
def test_the_rust_kernel_is_the_one_in_use() -> None:
    assert native_available()
    assert open_kernel(1337).name == "rust"
