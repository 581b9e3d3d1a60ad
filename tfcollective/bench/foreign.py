"""Runs a module of this package under another Python, which has not installed it.

    /path/to/other/python .../bench/foreign.py MODULE [ARGUMENTS...]

Only ``tfcollective`` itself becomes importable there, not what is installed beside it: the other environment keeps its
own numpy and TensorFlow. The module must get by with what that environment has.
"""

from __future__ import annotations

import runpy
import sys
from importlib import util
from pathlib import Path

__all__ = ["main"]


def main(module: str, *arguments: str) -> None:
    """Runs ``MODULE`` as ``python -m`` would."""
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    root = Path(__file__).resolve().parents[1]
    spec = util.spec_from_file_location(root.name, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    package = util.module_from_spec(spec)
    sys.modules[root.name] = package
    spec.loader.exec_module(package)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
