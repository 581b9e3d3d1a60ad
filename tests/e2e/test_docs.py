"""The Python examples of the documentation run as they stand there, on two processes."""

import re
from pathlib import Path

import pytest
from jobs import run_job

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/quickstart.md", "docs/reference/python_api.md")
BLOCKS = {
    f"{page}-{number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S), 1)
}
pytestmark = [pytest.mark.multiprocess, pytest.mark.tensorflow]


def test_there_are_examples():
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("name", [name for name, block in BLOCKS.items() if "init()" in block])
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BLOCKS[name])
    ranks = 1 if "tfcollective.run(" in BLOCKS[name] else 2
    done = run_job(tmp_path / "train.py", ranks)
    if ranks == 1:
        assert "[10, 11]" in done.stdout
