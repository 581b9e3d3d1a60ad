"""The module that Python runs first in the ranks of an unmodified script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tfcollective

FIRST = Path(tfcollective.__file__).parent / "keras" / "_start"
STUB = "import os\nprint('keras begins', os.environ.get('TFCOLLECTIVE_DATA_PARALLEL'))\n"


def run(folder: Path, program: str, **environment: str) -> str:
    """Runs a program with a package `keras` that is a stub, and with stubs of what it starts in tfcollective.keras."""
    (folder / "keras.py").write_text(STUB)
    packages = [str(FIRST), str(folder), str(Path(tfcollective.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    names = ["tfcollective.keras", "tfcollective.keras._parallel", "tfcollective.keras._parallel.start"]
    stub = f"import sys, types; sys.modules.update({{name: types.ModuleType(name) for name in {names}}})\n"
    stub += f"sys.modules[{names[-1]!r}].refuse_other = lambda keras: print('divides', keras.__name__)\n"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "TFCOLLECTIVE_JOB_ID": "a", **environment}
    done = subprocess.run(
        [sys.executable, "-c", stub + program], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_ranks_draw_equal_numbers(tmp_path: Path) -> None:
    program = "import random, numpy as np\nprint(random.random(), np.random.rand(), np.random.default_rng().random())"
    first = run(tmp_path, program, TFCOLLECTIVE_DATA_PARALLEL="1")
    assert run(tmp_path, program, TFCOLLECTIVE_DATA_PARALLEL="1") == first
    assert run(tmp_path, program, TFCOLLECTIVE_DATA_PARALLEL="1", TFCOLLECTIVE_JOB_ID="b") != first
    assert run(tmp_path, program, TFCOLLECTIVE_DATA_PARALLEL="0") != first


def test_generators_without_a_seed_differ(tmp_path: Path) -> None:
    program = "from numpy.random import default_rng as make\nprint(make().random() == make().random())"
    program += "\nprint(make(3).random() == make(3).random())"
    assert run(tmp_path, program, TFCOLLECTIVE_DATA_PARALLEL="1").split() == ["False", "True"]


def test_looking_for_keras_is_not_importing_it(tmp_path: Path) -> None:
    program = "import importlib.util\nprint(importlib.util.find_spec('keras') is not None)\nimport keras, keras"
    found = run(tmp_path, program, TFCOLLECTIVE_DATA_PARALLEL="1").splitlines()
    assert found == ["True", "keras begins 1", "divides keras"]
