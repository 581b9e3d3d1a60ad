"""What is said where the native library cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._runtime.native_library import library


@pytest.mark.parametrize(
    ("is_tree", "message"),
    [
        (True, r"you are in tfcollective's source tree \(.*\), which is not built and hides the installed package"),
        (False, r"cannot load the native library .*libtfcollective\.so: .*Reinstall tfcollective"),
    ],
)
def test_a_library_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_tree: bool, message: str
) -> None:
    place = tmp_path / "tfcollective" / "_runtime" / "native_library"
    place.mkdir(parents=True)
    if is_tree:
        (tmp_path / "CMakeLists.txt").touch()
    monkeypatch.setattr(library, "__file__", str(place / "library.py"))
    with pytest.raises(ConfigError, match=message):
        library.load()
