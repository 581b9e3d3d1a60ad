"""The Python examples of the documentation run as they stand there, on two processes."""

import re
from pathlib import Path

import pytest
from jobs import run_job

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = [f"docs/reference/api/{name}.md" for name in ("tfcollective", "keras", "tensorflow", "elastic")]
PAGES = ("README.md", "docs/quickstart.md", "docs/reference/python_api.md", *REFERENCE)


def blocks_of(text: str) -> list[str]:
    """The Python examples of a page; those that are shown as a difference, with it applied."""
    found = re.findall(r"^```(python|diff)\n(.*?)^```", text, re.M | re.S)
    return [re.sub(r"^-.*\n|^[ +]", "", block, flags=re.M) if kind == "diff" else block for kind, block in found]


BLOCKS = {
    f"{page}-{number}": block for page in PAGES for number, block in enumerate(blocks_of((ROOT / page).read_text()), 1)
}
LAUNCHES = [name for name, block in BLOCKS.items() if "tfcollective.run(" in block]
# One job runs them all, one after the other: importing TensorFlow takes longer than any of them.
DRIVER = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print("done with", path, flush=True)
"""
pytestmark = [pytest.mark.multiprocess, pytest.mark.tensorflow]


def write(folder: Path, names: list[str]) -> list[str]:
    paths = [folder / f"{name.replace('/', '_')}.py" for name in names]
    for path, name in zip(paths, names):
        path.write_text(BLOCKS[name])
    return [str(path) for path in paths]


@pytest.mark.long
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [name for name, block in BLOCKS.items() if "init()" in block and name not in LAUNCHES]
    assert len(names) >= 6
    (tmp_path / "driver.py").write_text(DRIVER)
    done = run_job(tmp_path / "driver.py", 2, *write(tmp_path, names), whole=True)
    assert done.stdout.count("done with") == 2 * len(names)


def test_the_first_example_of_the_readme(tmp_path):
    (path,) = write(tmp_path, ["README.md-1"])
    done = run_job(Path(path), 2, options=("--data-parallel",))
    assert "Epoch 3/3" in done.stdout


@pytest.mark.parametrize("name", LAUNCHES)
def test_an_example_that_launches_runs(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (path,) = write(tmp_path, [name])
    assert "[10, 11]" in run_job(Path(path), 1).stdout
