import subprocess
import sys
from pathlib import Path

import tfcollective
from tfcollective import __version__
from tfcollective_bench import external

# -I -S: nothing is installed there, and the working folder is no place to import from.
PACKAGE = str(Path(tfcollective.__file__).parent)
PYTHON = [sys.executable, "-I", "-S"]
# What external.py runs in the end, so that something can be looked at after it.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import external
external.main(sys.argv[2], "tfcollective_bench.units", "1")
import statistics, tfcollective, tfcollective_bench
print(tfcollective.__version__, sys.argv[1:], statistics.__file__)
"""


def test_an_uninstalled_package_hides_no_modules(tmp_path):
    folder = str(Path(external.__file__).parent)
    done = subprocess.run(
        [*PYTHON, "-c", PROGRAM, folder, PACKAGE], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    version, arguments, statistics = done.stdout.split()
    assert (version, arguments) == (__version__, "['1']")
    assert Path(statistics).parent != Path(folder), "the package's own modules hide those of Python"


def test_a_missing_module_is_an_error():
    command = [*PYTHON, external.__file__, PACKAGE, "tfcollective.no_such_module"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No module named tfcollective.no_such_module" in done.stderr
