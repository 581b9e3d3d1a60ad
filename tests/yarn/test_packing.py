"""The environment that travels with the job: packed by cluster-pack as a pex, or an archive with an interpreter."""

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
import yarn_jobs

import tfcollective
from tfcollective import TaskSpec

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(2400)]

WHEELS = Path(__file__).resolve().parents[2] / "dist"


@pytest.mark.skipif(not list(WHEELS.glob("*.whl")), reason="only `make test-yarn` builds the wheel that is packed")
def test_the_packed_environment_travels_with_hdfs_too(yarn, on_yarn, hdfs, tmp_path, monkeypatch):
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
    hdfs("dfs", "-put", str(packed), f"{hdfs.url}/there.pex")
    options["platform"] = {"archive": f"{hdfs.url}/there.pex", "allocation_timeout": 600.0}
    chief, _ = tfcollective.run(yarn_jobs.report, task_specs=specs, start_timeout=600, **options)
    assert "there.pex" in chief[5]


def test_an_archive_is_unpacked_on_every_node(yarn, on_yarn, tmp_path):
    # It borrows the packages of this one, which the nodes have, and holds an interpreter of its own.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "made")], check=True)
    packages = next((tmp_path / "made" / "lib").glob("python*/site-packages"))
    (packages / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "made", ".")
    options = on_yarn(python=None, archive=str(tmp_path / "made.tar.gz"))
    specs = {"chief": TaskSpec("400 MiB", 1), "worker": TaskSpec("400 MiB", 1)}
    for one in tfcollective.run(yarn_jobs.report, task_specs=specs, **options):
        assert "environment" in one[5]
        assert "made" not in one[7]
        assert one[7].endswith("/made.tar.gz") or one[7].endswith("/environment")
