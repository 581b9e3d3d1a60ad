import shutil
import subprocess
import sys

from tfcollective._control.identity.node import ancestor

PROGRAM = "from tfcollective._control.identity.node import ancestor; print(ancestor(['hydra_pmi_proxy']))"


def test_all_descendants_find_the_same_ancestor(tmp_path):
    """As MPICH's proxy starts the ranks of a node, which may be scripts that start Python."""
    proxy = tmp_path / "hydra_pmi_proxy"  # as many letters as the kernel keeps
    shutil.copy(shutil.which("bash"), proxy)
    rank = f"{sys.executable} -c {PROGRAM!r}"
    script = f'{rank}; bash -c "$RANK; true"; echo $$'
    env = {"PATH": "/usr/bin:/bin", "RANK": rank}
    first, second, pid = subprocess.run(
        [proxy, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert first == second
    assert first.partition("-")[0] == pid
    again = subprocess.run([proxy, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=120)
    assert again.stdout.split()[0] != first


def test_a_process_without_such_an_ancestor():
    assert ancestor(["no_such_program"]) is None
