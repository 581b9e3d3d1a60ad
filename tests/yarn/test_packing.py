"""The environment that travels with the job, packed by cluster-pack as a pex."""

from pathlib import Path

import pytest
import yarn_jobs

import tfcollective
from tfcollective import TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(1200)]

WHEELS = Path(__file__).resolve().parents[2] / "dist"


@pytest.mark.skipif(not list(WHEELS.glob("*.whl")), reason="only `make test-yarn` builds the wheel that is packed")
def test_the_running_environment_is_packed_and_travels(yarn, on_yarn, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # pip takes a directory here for the package of that name
    pack = {
        "only_packages": ["skein", "setuptools", "tfcollective"],  # without the tests' own, which would take minutes
        "additional_packages": {"tfcollective": tfcollective.__version__},
        "additional_indexes": [str(WHEELS)],
    }
    options = on_yarn(python=None, pack=pack, allocation_timeout=600.0)
    options["env"].pop("PYTHONPATH", None)  # nothing but what was packed
    specs = {"chief": TaskSpec("900 MiB", 1), "worker": TaskSpec("900 MiB", 1)}
    chief, worker = tfcollective.run(yarn_jobs.report, task_specs=specs, start_timeout=600, **options)
    assert (chief[:3], worker[:3]) == ((0, 2, 1.0), (1, 2, 1.0))
    (packed,) = (tmp_path / "cache/tfcollective/environments").glob("*.pex")
    assert packed.name in chief[5]
