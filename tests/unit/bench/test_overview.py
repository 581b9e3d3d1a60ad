"""The README's pictures show what docs/performance.md says."""

from pathlib import Path

import pytest

from tfcollective_bench.report.overview import PICTURES, draw, figures_of, row, seconds

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "performance.md").read_text()


def test_a_row_is_read_with_its_columns():
    page = (
        "\n## A\n| | x | y z |\n|---|---|---|\n| ours, best | 13 800 [12 300, 15 800] | 123 ms (117 to 129) |\n\n## B\n"
    )
    assert row(page, "A", "ours") == {"x": 13800, "y z": pytest.approx(0.123)}
    with pytest.raises(KeyError):
        row(page, "A", "theirs")


def test_seconds_have_two_digits():
    assert [seconds(value) for value in (0.123, 7.6, 30.2)] == ["0.12 s", "7.6 s", "30 s"]


def test_the_published_figures_are_found():
    assert figures_of("overview-elastic", PAGE) == "0.12 s 7.6 s 30 s 0.71 s 7.6 s 38 s"
    assert figures_of("overview-training", PAGE).split() == (
        ["1.47x", "0.68x", "0.52x", "0.55x", "1.92x", "1.46x", "1.11x", "1.27x", "1.16x", "1.76x"]
    )


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_match_the_page(name, tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    draw(name, PAGE, tmp_path / "drawn.png")
    for file in (tmp_path / "drawn.png", ROOT / "docs" / "images" / f"{name}.png"):
        assert image.open(file).text["Comment"] == figures_of(name, PAGE), (
            "python -m tfcollective_bench.report.overview"
        )
