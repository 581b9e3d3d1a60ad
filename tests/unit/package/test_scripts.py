"""Scripts that people run by hand from a clone."""

import subprocess
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
def test_the_script_for_gpus_says_how_it_is_used(arguments, message):
    done = subprocess.run(
        ["bash", str(TOOLS / "gpu_check.sh"), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 64
    assert message in done.stderr
