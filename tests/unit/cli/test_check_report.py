"""The report for a bug report says what matters and holds no secret."""

import stat

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._cli import main
from tfcollective._cli.check_report import report_text, write_report
from tfcollective._launch.launcher import Finding

JOB_KEY = "0123456789abcdef" * 4
SECRETS = {
    "TFCOLLECTIVE_KEY": JOB_KEY,
    "TFCOLLECTIVE_KEY_FILE": "/srv/keys/of-the-job",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "GITHUB_TOKEN": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz",
    "DB_PASSWORD": "swordfish",
    "TF_AUTH_HEADER": "Bearer xyzzy-plugh",
}
# Variables that are shown, with a secret inside.
PATHS = {
    "PYTHONPATH": "/mnt/ghp_abcdefghijklmnopqrstuvwxyz0123456789/lib:/opt/lib",
    "TFCOLLECTIVE_LIBRARY": "/tokens/wJalrXUtnFEMIK7MDENGbPxRfiCY/libtfcollective.so",
    "LD_LIBRARY_PATH": "/vault/Zm9v-YmFy_QmF6MTIzNDU2Nzg5MDEyMzQ1Njc4/lib",
    "HTTPS_PROXY": "http://alice:open-sesame@proxy.example:3128",
    "HTTP_PROXY": "carol:open-barley@proxy.example:3128",
    "ALL_PROXY": "socks5://dave:p@ss/word@proxy.example:1080",
    "TF_MODEL_URL": "https://store.example/model?X-Amz-Signature=0f1e2d&X-Amz-Date=2026",
    "TF_NOTE": "the database says swordfish",
}
ENVIRON = {**SECRETS, **PATHS, "HOME": "/home/alice", "UNRELATED": "private matter", "TF_CPP_MIN_LOG_LEVEL": "2"}
FINDINGS = [
    Finding.note("/dev/shm", "small", "make it larger"),
    Finding("native library", True, "/home/alice/env/libtfcollective.so", "a remedy of what has not failed"),
    Finding("all-reduce", False, "rank 1 said swordfish to https://bob:hunter2@host/", "mend it"),
]
HIDDEN = (
    *SECRETS.values(),
    *("ghp_", "wJalrXUtnFEMIK7MDENGbPxRfiCY", "Zm9v-YmFy", "open-sesame", "alice", "bob", "hunter2", "0f1e2d"),
    *("carol", "open-barley", "dave", "p@ss", "ss/word"),
    *("UNRELATED", "private matter"),
)


@pytest.fixture
def text():
    return report_text(FINDINGS, ENVIRON)


@pytest.mark.parametrize("secret", HIDDEN)
def test_no_secret_is_in_it(text, secret):
    assert secret not in text


def test_what_matters_is_in_it(text):
    for line in (
        "note   /dev/shm: small",
        "       to mend it: make it larger",
        "ok     native library: ~/env/libtfcollective.so",
        "FAILED all-reduce: rank 1 said (removed) to https://(removed)@host/",
        "       to mend it: mend it",
        "TF_CPP_MIN_LOG_LEVEL=2",
        "TFCOLLECTIVE_KEY=(removed)",
        "PYTHONPATH=/mnt/(removed)/lib:/opt/lib",
        "TFCOLLECTIVE_LIBRARY=/tokens/(removed)/libtfcollective.so",
        "HTTPS_PROXY=http://(removed)@proxy.example:3128",
        "HTTP_PROXY=(removed)@proxy.example:3128",
        "ALL_PROXY=socks5://(removed)@proxy.example:1080",
    ):
        assert line in text.splitlines()
    assert "what has not failed" not in text
    packages = text.partition("## Packages")[2]
    assert "\ntfcollective " in packages and "\nnumpy " in packages
    assert "Python 3." in text


def test_the_file_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "report.txt"
    write_report(path, FINDINGS, ENVIRON)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with path.open("rb") as opened:  # as somebody may have it who could read the earlier one
        write_report(path, FINDINGS, {})
        assert b"proxy.example" in opened.read()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "proxy.example" not in path.read_text("utf-8")


def test_a_link_is_not_followed(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "report.txt"
    victim.write_text("kept")
    for target in (victim, tmp_path / "nothing", tmp_path):
        link.symlink_to(target)
        with pytest.raises(ConfigError, match="it is a link, or no file"):
            write_report(link, FINDINGS, ENVIRON)
        link.unlink()
    with pytest.raises(ConfigError, match="it is a link, or no file"):
        write_report(tmp_path, FINDINGS, ENVIRON)
    assert victim.read_text() == "kept"
    assert [one.name for one in tmp_path.iterdir()] == ["victim"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--report .*none/report.txt: cannot write the report: No such file"):
        write_report(tmp_path / "none" / "report.txt", FINDINGS, ENVIRON)


@pytest.mark.multiprocess
def test_the_command_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFCOLLECTIVE_KEY", JOB_KEY)
    code = main(["check", "--report"])
    out = capsys.readouterr().out
    text = (tmp_path / "tfcollective-report.txt").read_text("utf-8")
    assert "the report is in tfcollective-report.txt" in out
    assert JOB_KEY not in text
    assert ("FAILED" in text) == (code != 0)
    assert "all-reduce between 2 processes: got [3.0, 3.0]" in text
