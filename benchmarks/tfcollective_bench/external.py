"""Runs a module of this package under another Python, which has not installed it.

    /path/to/other/python .../tfcollective_bench/external.py FOLDER MODULE [ARGUMENTS...]

FOLDER is that of the package ``tfcollective``. Only it and this package become importable there, not what is installed
next to them: the other environment keeps its own numpy and TensorFlow. The module uses only what that environment has.
"""

from __future__ import annotations

import runpy
import sys
from importlib import util
from pathlib import Path

__all__ = ["main"]


def main(folder: str, module: str, *arguments: str) -> None:
    """Runs ``MODULE`` as ``python -m`` would."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    for package in (Path(folder), here):
        _import_from(package)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import_from(root: Path) -> None:
    spec = util.spec_from_file_location(root.name, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    package = util.module_from_spec(spec)
    sys.modules[root.name] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    main(*sys.argv[1:])
