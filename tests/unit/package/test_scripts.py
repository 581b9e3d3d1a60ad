"""Scripts that people run by hand, or by make, from a clone."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: this is not a packed folder: tools/gpu_check.sh pack FOLDER makes one"),
        (["pack"], "error: which folder? tools/gpu_check.sh pack FOLDER"),
        (["packs"], "FOLDER/gpu_check.sh"),
    ],
)
def test_the_gpu_script_explains_its_usage(arguments, message):
    done = subprocess.run(
        ["bash", str(TOOLS / "gpu_check.sh"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 64
    assert message in done.stderr


SUITE = '<testsuite name="pytest" errors="1" failures="2" skipped="4" tests="17" time="61.6"/>'


@pytest.mark.parametrize(
    ("written", "outcome"),
    [
        (f"<testsuites>{SUITE}</testsuites>", "10 passed, 3 failed, 4 skipped | 62"),
        (None, "pytest was ended | "),
    ],
)
def test_the_results_with_one_tensorflow_are_a_row(tmp_path, written, outcome):
    results = tmp_path / "results.xml"
    if written is not None:
        results.write_text(written)
    command = [sys.executable, str(TOOLS / "tensorflow_row.py"), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("| ")
    assert done.stdout.endswith(f" | {platform.python_version()} | {outcome} |\n")


def test_the_figures_of_a_checkout_are_a_table(tmp_path):
    package = tmp_path / "tfcollective"
    for name, text in (
        ("__init__", ""),
        ("a", "from tfcollective import _b\n"),
        ("_b", 'def f():\n    "What is asked."\n    from tfcollective.a import g\n'),
    ):
        package.mkdir(exist_ok=True)
        (package / f"{name}.py").write_text(text)
    command = [sys.executable, str(TOOLS / "figures.py"), f"now={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    figures = dict(re.findall(r"^\| (.*) \| (.*) \|$", done.stdout, re.M))
    assert figures["what"] == "now"
    assert figures["lines of the package and its launchers"] == "4"
    assert figures["circles of modules"] == "1"
    assert figures["fields of `Settings` and its bases"] == "-"
    assert figures["of these without a subject (What, Whether, How ...)"] == "1"
