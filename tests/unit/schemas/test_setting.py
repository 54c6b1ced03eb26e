"""What a part declares of a setting."""

import pytest

from schemas.setting import Setting, changed, part, setting


@pytest.mark.parametrize(
    ("declared", "option", "variable"),
    [
        (Setting("memory.dir", ""), "--memory-dir", "REPRISE_MEMORY_DIR"),
        (Setting("bridge.window_ms", "", flag="--window-ms"), "--window-ms", "REPRISE_WINDOW_MS"),
        (Setting("seed", "", variable="CONDUCTOR_SEED"), "--seed", "CONDUCTOR_SEED"),
        (Setting("tokens", "", variable=None), "--tokens", None),
    ],
)
def test_flag_and_variable_are_like_the_key_where_it_names_no_others(
    declared: Setting, option: str, variable: str | None
) -> None:
    assert (declared.option, declared.environment) == (option, variable)


def test_settings_of_a_part_are_made_by_keywords_and_changed_by_a_copy() -> None:
    @part
    class SpoolSettings:
        window_ms: int = setting("bridge.window_ms", "How long.", default=50)

    plain = SpoolSettings()
    assert changed(plain, window_ms=7) == SpoolSettings(window_ms=7)
    assert plain.window_ms == 50
    with pytest.raises(AttributeError):
        plain.window_ms = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        SpoolSettings(50)  # type: ignore[call-arg]
