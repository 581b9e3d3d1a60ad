"""horovodrun's flags and configuration files, and who runs what."""

import re
import sys

import pytest
from click.testing import CliRunner

from tfcollective._base.errors import ConfigError
from tfcollective._base.timing import TIMING
from tfcollective._base.topology import PortRange
from tfcollective._cli import main
from tfcollective._cli.run import opening, run
from tfcollective._cli.run_options import job_spec
from tfcollective._launch.plan.hosts import Host
from tfcollective._launch.plan.planner import plan_local
from tfcollective._launch.plan.spec import JobSpec


def parsed(*arguments):
    """(launcher, job) of a command line."""
    context = run.make_context("run", [*arguments, "true"])
    options = dict(context.params)
    return job_spec(options, options.pop("command"))


def test_a_list_of_this_machine_is_local():
    launcher, spec = parsed("-np", "2", "-H", "localhost:4")
    assert (launcher, spec.num_proc) == ("local", 2)
    assert parsed("-H", "localhost:4")[1].num_proc == 4


def test_other_hosts_need_ssh(tmp_path):
    (tmp_path / "hosts").write_text("h1.invalid slots=2 # comment\nh2.invalid max-slots=3\n")
    launcher, spec = parsed("-hostfile", str(tmp_path / "hosts"), "-p", "2222", "-i", "/k", "--ssh-options", "-F 'a b'")
    assert (launcher, spec.num_proc, [host.slots for host in spec.hosts]) == ("ssh", 5, [2, 3])
    assert spec.platform["port"] == 2222
    assert spec.platform["identity_file"] == "/k"
    assert spec.platform["options"] == ("-F", "a b")


def test_how_long_ranks_and_hosts_are_given(monkeypatch):
    assert [(spec.grace, spec.host_timeout) for spec in (parsed("-np", "2")[1], JobSpec(("x",), 2))] == [
        (10.0, 15.0)
    ] * 2
    monkeypatch.setenv("TFCOLLECTIVE_GRACE", "0")
    monkeypatch.setenv("TFCOLLECTIVE_HOST_TIMEOUT", "60")
    assert (parsed("-np", "2")[1].grace, parsed("-np", "2")[1].host_timeout) == (0.0, 60.0)
    spec = parsed("-np", "2", "--grace", "120", "--host-timeout", "5")[1]
    assert (spec.grace, spec.host_timeout) == (120.0, 5.0)
    takes = f"a heartbeat and its answer may take {TIMING.node_heartbeat + TIMING.short_reply:g} s"
    with pytest.raises(ConfigError, match=f"host_timeout .*: expected 5 s or more, got 4: {takes}"):
        parsed("-np", "2", "--host-timeout", "4")
    with pytest.raises(ConfigError, match=r"grace .*: expected a number of seconds, 0 or more"):
        parsed("-np", "2", "--grace", "-1")


@pytest.mark.parametrize(
    ("words", "web"),
    [
        ((), None),
        (("--web",), "auto"),
        (("--web", "--verbose"), "auto"),
        (("--web", "10.0.0.7:8080"), "10.0.0.7:8080"),
        (("--web=[::1]:80",), "[::1]:80"),
    ],
)
def test_the_address_of_the_page_may_be_omitted(words, web):
    assert parsed("-np", "2", *words)[1].web == web
    context = run.make_context("run", ["-np", "2", *words, "train", "--web", "x"])
    assert context.params["command"] == ("train", "--web", "x")


@pytest.mark.parametrize("wrong", ["8080", "host", "host:0", "host:99999"])
def test_a_page_needs_an_address(wrong):
    with pytest.raises(ConfigError, match=r"web \(--web\): expected"):
        JobSpec(("x",), 2, web=wrong)


def test_a_nested_job_drops_the_outer_timeline(monkeypatch):
    monkeypatch.setenv("TFCOLLECTIVE_TIMELINE", "/t.json")
    assert parsed("-np", "2")[1].timeline == "/t.json"
    monkeypatch.setenv("TFCOLLECTIVE_TASK", "worker:0")
    assert parsed("-np", "2")[1].timeline is None
    assert parsed("-np", "2", "--timeline", "/own.json")[1].timeline == "/own.json"


def test_agents_that_others_start():
    launcher, spec = parsed("-np", "4", "--wait-for-agents", "2", "--port", "29477")
    assert (launcher, spec.platform["agents"], spec.platform["port"]) == ("agents", 2, 29477)
    with pytest.raises(ConfigError, match="leave out -H"):
        parsed("--wait-for-agents", "2", "-H", "h:2")
    for name, value in (("--port", "29477"), ("--key-file", "job.key")):
        with pytest.raises(ConfigError, match=f"{name} needs --wait-for-agents N"):
            parsed("-np", "2", name, value)


def test_mpi_has_its_own_launcher():
    launcher, spec = parsed("-np", "2", "--mpi", "--mpi-args", "--mca btl 'self,tcp'")
    assert (launcher, spec.engine, spec.platform["args"]) == ("mpi", "mpi", ("--mca", "btl", "self,tcp"))
    launcher, spec = parsed("--engine", "mpi", "-H", "h1.invalid:2,h2.invalid:1", "-p", "2222")
    assert (launcher, spec.num_proc, spec.platform["port"]) == ("mpi", 3, 2222)
    with pytest.raises(ConfigError, match="leave out --launcher"):
        parsed("-np", "2", "--mpi", "--wait-for-agents", "2")
    with pytest.raises(ConfigError, match="needs --engine mpi"):
        parsed("-np", "2", "--mpi-args", "x")
    with pytest.raises(ConfigError, match="cannot be combined with --engine"):
        parsed("-np", "2", "--mpi", "--engine", "native")


def test_horovodruns_names():
    flags = ("--stall-check-warning-time-seconds", "7", "--gloo-timeout-seconds", "8", "--timeline-filename", "/t")
    more = ("--output-filename", "/o", "--network-interfaces", "eth0,ib1", "--fusion-threshold-mb", "16")
    spec = parsed("-np", "2", *flags, *more, "-prefix-timestamp", "--log-level", "TRACE")[1]
    assert (spec.stall_warning, spec.op_timeout, spec.timeline, spec.log_dir) == (7.0, 8.0, "/t", "/o")
    assert spec.network_interfaces == ("eth0", "ib1")
    assert spec.rank_env == {"TFCOLLECTIVE_BUCKET_BYTES": str(16 << 20)}
    assert parsed("-np", "2", "--bucket-mb", "auto")[1].rank_env == {"TFCOLLECTIVE_BUCKET_BYTES": "auto"}
    assert (spec.timestamps, spec.log_level) == (True, "debug")
    assert parsed("-np", "2", "--no-stall-check")[1].stall_warning == 0


def test_an_elastic_job_has_horovodruns_options(monkeypatch):
    bounds = parsed("-np", "4", "--min-num-proc", "2", "--elastic-timeout", "9")[1].bounds
    assert (bounds.smallest, bounds.first, bounds.largest, bounds.shortage) == (2, 4, 4, 9.0)
    assert parsed("-np", "4", "--min-np", "2")[1].bounds.shortage == 600
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "30")
    assert parsed("-np", "4", "--min-np", "4")[1].bounds.shortage == 30
    assert parsed("-np", "4")[1].bounds is None


def test_a_job_that_grows_has_horovodruns_options():
    script = ("--host-discovery-script", "./hosts.sh 'a b'", "--slots-per-host", "4")
    more = ("--max-num-proc", "8", "--reset-limit", "3", "--blacklist-cooldown-range", "5", "90")
    launcher, spec = parsed("-np", "2", *script, *more, "--blacklist", "h1,h2")
    assert (launcher, spec.discovery, spec.slots) == ("ssh", ("./hosts.sh", "a b"), 4)
    assert (spec.bounds.smallest, spec.bounds.first, spec.bounds.largest, spec.bounds.changes) == (2, 2, 8, 3)
    assert (spec.cooldown_range, spec.blacklist) == ((5, 90), ("h1", "h2"))
    launcher, spec = parsed("--min-np", "1", "--max-np", "3", "-H", "h1:2,h2:2,h3:2", "--blacklist", "h2")
    assert (launcher, spec.num_proc, [host.name for host in spec.hosts]) == ("ssh", 3, ["h1", "h3"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-np", "2", "--max-np", "4"), r"max_proc \(--max-np\): it is for an elastic job"),
        (("-np", "2", "-H", "h1:2", "--host-discovery-script", "x"), "leave out --launcher, -H, --hostfile"),
        (("-np", "2", "--launcher", "local", "--host-discovery-script", "x"), "leave out --launcher"),
        (("-np", "2", "--wait-for-agents", "2", "--host-discovery-script", "x"), "leave out .*--wait-for-agents"),
        (("--host-discovery-script", "x"), "the number of ranks is missing"),
        (("-np", "2", "--host-discovery-script", "'x"), 'discovery .* "\'x": No closing quotation'),
    ],
)
def test_what_a_job_that_grows_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*arguments)


@pytest.mark.parametrize("flag", ["-np", "--num-proc"])
def test_options_after_the_command_are_pointed_out(flag):
    context = run.make_context("run", ["python", "train.py", flag, "2"])
    options = dict(context.params)
    with pytest.raises(ConfigError, match=f"the number of ranks is missing: put {flag} before the command"):
        job_spec(options, options.pop("command"))


def test_a_task_spec_makes_a_job_elastic():
    spec = parsed("--task-spec", "chief", "--task-spec", "worker:instances=4,min_instances=2")[1]
    assert (spec.num_proc, spec.bounds.smallest) == (5, 3)


def test_preemption_options_reach_the_spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notices = ("--preemption-file", "notice", "--preemption-command", "curl -sf 'http://a b'")
    spec = parsed("-np", "4", "--min-np", "2", *notices)[1]
    assert (spec.preemption_file, spec.preemption_command) == (f"{tmp_path}/notice", ("curl", "-sf", "http://a b"))
    assert spec.process_options["preemption_file"] == f"{tmp_path}/notice"  # what agents get


def test_flags_without_effect_are_named(capsys):
    arguments = ("--gloo", "--cycle-time-ms", "5", "--no-autotune", "--autotune-steps-per-sample", "3", "--tcp")
    assert main(["run", "-np", "1", *arguments, "--print-plan", "true"]) == 0
    named = "--gloo, --cycle-time-ms, --autotune, --autotune-steps-per-sample, --tcp"
    assert f"no effect here: {named}\n" in capsys.readouterr().err
    assert main(["run", "-np", "1", "--print-plan", "true"]) == 0
    assert "no effect" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--binding-args", "x"), "--binding-args: .* --wait-for-agents N"),
        (("--jsrun",), "--jsrun: .* --wait-for-agents N"),
    ],
)
def test_horovodrun_flags_without_counterpart_give_advice(arguments, advice, capsys):
    assert main(["run", "-np", "1", *arguments, "--print-plan", "true"]) == 64
    assert re.search(advice, capsys.readouterr().err)


CONFIG = """
controller: gloo
num-proc: 3
env: [A=1, B=2]
network_interface: eth1
params: {fusion_threshold_mb: 4, cycle_time_ms: 3}
timeline: {filename: /trace.json, mark_cycles: true}
stall_check: {enabled: true, warning_time_seconds: 9}
library_options: {gloo_timeout_seconds: 77}
logging: {level: info}
"""


def test_a_configuration_file_in_horovodruns_form(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    spec = parsed("--config-file", str(path))[1]
    assert (spec.num_proc, spec.timeline, spec.stall_warning, spec.op_timeout) == (3, "/trace.json", 9.0, 77.0)
    assert spec.rank_env == {"A": "1", "B": "2", "TFCOLLECTIVE_BUCKET_BYTES": str(4 << 20)}
    assert (spec.network_interfaces, spec.log_level) == (("eth1",), "info")


def test_the_command_line_goes_before_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    spec = parsed("--gloo-timeout-seconds", "5", "--config-file", str(path), "-np", "2")[1]
    assert (spec.num_proc, spec.op_timeout, spec.stall_warning) == (2, 5.0, 9.0)


def test_stall_checks_can_be_disabled_by_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("stall_check: {enabled: false}\nnum_proc: 1")
    assert parsed("--config-file", str(path))[1].stall_warning == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_procs: 3", "unknown name 'num_procs'"),
        ("params: {fusion: 3}", "unknown name params.fusion: expected one of fusion_threshold_mb"),
        ("[1, 2]", "expected a mapping"),
        ("{", "--config-file: "),
        ("num_proc: many", "many"),
    ],
)
def test_files_that_mean_nothing(tmp_path, text, message, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert main(["run", "--config-file", str(path), "true"]) == 64
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "5", "-H", "a:2,b:2"], "5 processes do not fit into the 4 slots of a:2, b:2"),
        (["-H", "a:2,a:2"], "a stands there twice"),
        (["-H", "a:2", "--hostfile", "f"], "cannot be combined"),
        (["-np", "2", "--engine", "nccl"], "engine (--engine): expected one of native, horovod, mpi, got 'nccl'"),
        (["-H", "a:2,a:1"], "a stands there twice"),
        (["--hostfile", "/no/such/file"], "cannot read the hostfile /no/such/file"),
        (["-H", "h.invalid:1", "--ssh-options", "'"], "--ssh-options"),
        (["-np", "2", "--bucket-mb", "0"], "above 0"),
        (
            ["-np", "2", "--bucket-mb", "many"],
            "bucket_mb (--bucket-mb): expected a number of MiB above 0, or auto, got 'many'",
        ),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    assert main(["run", *arguments, "--print-plan", "true"]) == 64
    assert message in capsys.readouterr().err


def test_what_this_installation_can_do(monkeypatch, capsys):
    for module in ("mpi4py", "skein"):
        monkeypatch.setitem(sys.modules, module, None)  # not installed
    assert main(["run", "--check-build"]) == 0
    text = capsys.readouterr().out
    assert "[X] native (TCP, shared memory)" in text
    assert "[X] local" in text
    assert "[ ] mpi" in text
    assert "[ ] yarn" in text


def headings_of(*words: str) -> list[str]:
    lines = CliRunner().invoke(run, [*words]).output.splitlines()
    return [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]


def test_help_shows_the_common_options():
    text = CliRunner().invoke(run, ["--help"]).output
    assert headings_of("--help") == ["Processes", "Hosts", "Failures", "Output", "Compatibility", "Options"]
    assert "--num-proc" in text
    assert "--help-all" in text
    assert "--reset-limit" not in text


@pytest.mark.parametrize("words", [["--launcher", "slurm", "--help"], ["--help", "--launcher=slurm"]])
def test_help_shows_the_options_of_a_platform(words):
    assert {"SLURM", "Clusters"} < set(headings_of(*words))
    assert "Kubernetes" not in headings_of(*words)


def test_help_all_shows_the_options_in_groups():
    headings = headings_of("--help-all")
    lines = CliRunner().invoke(run, ["--help-all"]).output.splitlines()
    groups = ["Processes", "Hosts", "Clusters", "Kubernetes", "SLURM", "Spark", "YARN"]
    groups += ["Failures", "Output", "Performance", "Compatibility", "Options"]
    assert headings == groups
    rest = [line.split()[0] for line in lines[lines.index("Options:") + 1 :] if line.startswith("  -")]
    assert rest == ["--print-plan,", "-cb,", "--help-all", "-v,", "-h,"]


@pytest.mark.parametrize(
    ("launcher", "hosts", "line"),
    [
        ("local", (), "2 ranks on this machine, 4 cores each"),
        ("ssh", (Host("a", 1), Host("b", 4), Host("c", 1)), "2 ranks on 2 hosts"),
        ("ssh", (Host("a", 4),), "2 ranks on 1 host"),
        ("join", (), "2 ranks, with the launcher join"),
    ],
)
def test_a_job_announces_its_ranks_and_hosts(launcher, hosts, line):
    assert opening(launcher, JobSpec(("train",), 2, hosts=hosts), cores=8) == line


def test_more_ranks_than_cores_share_them():
    assert opening("local", JobSpec(("train",), 3), cores=2) == "3 ranks on this machine, which share 2 cores"


def test_a_port_range_covers_coordinator_and_ranks(monkeypatch):
    _, spec = parsed("-np", "2", "--port-range", "29500-29600", "true")
    assert spec.port_range == PortRange(29500, 29600)
    (rank, _) = plan_local(spec, cores=2, environ={}).workers
    assert rank.env["TFCOLLECTIVE_PORT_RANGE"] == "29500-29600"
    monkeypatch.setenv("TFCOLLECTIVE_PORT_RANGE", "5-6")
    assert parsed("-np", "2", "true")[1].port_range == PortRange(5, 6)
    with pytest.raises(ConfigError, match=r"port_range \(--port-range\): expected LOW-HIGH"):
        parsed("-np", "2", "--port-range", "29500", "true")
