"""The interface for launchers of platforms, built in or of your own: docs/howto/own_launcher.md explains its use.

A platform imports nothing else of tfcollective. Names that no platform in ``launchers/`` uses are not part of it.
"""

from tfcollective._base import log
from tfcollective._base import platform_options as shared
from tfcollective._base.addresses import is_own_host, route_address
from tfcollective._base.clock import SYSTEM_CLOCK, Clock, Deadline, on_thread, poll
from tfcollective._base.codec import decode, encode, encode_line
from tfcollective._base.descriptors import give_usual_limit
from tfcollective._base.errors import ConfigError, LaunchError, RendezvousError, TfCollectiveError, UnsupportedError
from tfcollective._base.exit_codes import SIGNAL_BASE, ExitCode, signal_name
from tfcollective._base.failures import ExitRecord
from tfcollective._base.guarded_listener import BACKLOG, GuardedListener
from tfcollective._base.host_names import expand_hosts
from tfcollective._base.job_keys import new_key
from tfcollective._base.log import get_logger, say
from tfcollective._base.machine.cores import THREAD_VARIABLES, thread_variables
from tfcollective._base.machine.gpus import VISIBLE, gpu_variables, visible_gpus
from tfcollective._base.machine.network import choose_address, interface_addresses, own_address
from tfcollective._base.options import (
    FLAG,
    LINE,
    MANIFESTS,
    TEXT,
    VARIABLES,
    WORDS,
    Kind,
    Options,
    choice,
    count,
    form,
    line,
    option,
    performance,
    seconds,
)
from tfcollective._base.private_directory import write_private
from tfcollective._base.processes import PASSED_ON, answer_of, end_process, program_of
from tfcollective._base.rows.arrays import arrays_of, check_schema, columns, import_pyarrow, not_an_array
from tfcollective._base.rows.stream import RowWriter
from tfcollective._base.settings import (
    Settings,
    environ_snapshot,
    external_variable,
    first_on_path,
    variable,
    without_outer_job,
)
from tfcollective._base.task_specs import (
    DEFAULT_MEMORY,
    DEFAULT_VCORES,
    TaskSpec,
    memory_in_mib,
    single_server_topology,
)
from tfcollective._base.tasks import CHIEF, EVALUATOR, SIDE_TYPES, TENSORBOARD, TRAINER_TYPES, WORKER, TaskKey
from tfcollective._base.timing import TIMING, Timing
from tfcollective._base.topology import Endpoint, Placement
from tfcollective._base.version import __version__
from tfcollective._launch.agent.node import wait_for_key
from tfcollective._launch.agent.protocol import NodeFacts, NodeSettings, WorkerPlan
from tfcollective._launch.api import function_job, results_of, results_wanted
from tfcollective._launch.elastic.discovery import HostDiscovery
from tfcollective._launch.hosted.messages import ContainerRow, HostedJob, HostedOutcome
from tfcollective._launch.hosted.output_relay import OutputFollower
from tfcollective._launch.hosted.platform_side import ContainerProvider, serve_container, serve_job, started_again
from tfcollective._launch.hosted.submitter_side import HostedClient, LauncherLostError, ask_status
from tfcollective._launch.launcher import (
    Capabilities,
    CheckedLauncher,
    Finding,
    JobDescription,
    JobManager,
    JobOutcome,
    Launcher,
    ManifestLauncher,
    StartFailure,
    find_launcher,
)
from tfcollective._launch.nodes.gather import all_enrolled
from tfcollective._launch.nodes.provider import Arrival, NodeProvider, Refill, Went
from tfcollective._launch.plan.hosts import Host, Share, share_out
from tfcollective._launch.plan.job_file import job_text
from tfcollective._launch.plan.planner import Plan, plan_hosts, with_tf_config
from tfcollective._launch.plan.rank_variables import rank_variables
from tfcollective._launch.plan.spec import OPTIONS, JobSpec
from tfcollective._launch.platforms.commands import AGENT, CommandProvider, own_agent
from tfcollective._launch.platforms.join import dealt_assignment, elastic_assignment, numbered_name
from tfcollective._launch.report.report import exit_code, render
from tfcollective._launch.report.restarts import run_job
from tfcollective._launch.run import Assign, Assignment, Enrolment, by_name, client_of, run_job_on
from tfcollective._launch.running.job import Job, new_job_id
from tfcollective._launch.system.signals import forward_signals, heed
from tfcollective._launch.system.ssh import ACCEPT_NEW, DEFAULTS, SshOptions, hosts_that_ask

__all__ = [
    "ACCEPT_NEW",
    "AGENT",
    "Assign",
    "Assignment",
    "BACKLOG",
    "CHIEF",
    "Capabilities",
    "CheckedLauncher",
    "Clock",
    "CommandProvider",
    "ConfigError",
    "ContainerProvider",
    "ContainerRow",
    "DEFAULTS",
    "DEFAULT_MEMORY",
    "DEFAULT_VCORES",
    "Deadline",
    "EVALUATOR",
    "FLAG",
    "Endpoint",
    "Enrolment",
    "ExitCode",
    "ExitRecord",
    "Finding",
    "GuardedListener",
    "Host",
    "HostDiscovery",
    "HostedClient",
    "HostedJob",
    "HostedOutcome",
    "Job",
    "JobDescription",
    "JobManager",
    "JobOutcome",
    "JobSpec",
    "Kind",
    "LINE",
    "LaunchError",
    "Launcher",
    "LauncherLostError",
    "ManifestLauncher",
    "MANIFESTS",
    "NodeFacts",
    "NodeProvider",
    "Arrival",
    "Refill",
    "NodeSettings",
    "OPTIONS",
    "Options",
    "OutputFollower",
    "PASSED_ON",
    "Placement",
    "Plan",
    "RendezvousError",
    "RowWriter",
    "SIDE_TYPES",
    "SIGNAL_BASE",
    "SYSTEM_CLOCK",
    "Settings",
    "Share",
    "SshOptions",
    "StartFailure",
    "TENSORBOARD",
    "TEXT",
    "THREAD_VARIABLES",
    "TIMING",
    "TRAINER_TYPES",
    "TaskKey",
    "TaskSpec",
    "TfCollectiveError",
    "Timing",
    "UnsupportedError",
    "VARIABLES",
    "VISIBLE",
    "WORDS",
    "WORKER",
    "Went",
    "WorkerPlan",
    "__version__",
    "all_enrolled",
    "answer_of",
    "arrays_of",
    "ask_status",
    "by_name",
    "check_schema",
    "choice",
    "choose_address",
    "client_of",
    "columns",
    "count",
    "dealt_assignment",
    "decode",
    "elastic_assignment",
    "encode",
    "encode_line",
    "end_process",
    "environ_snapshot",
    "exit_code",
    "expand_hosts",
    "external_variable",
    "find_launcher",
    "first_on_path",
    "form",
    "forward_signals",
    "function_job",
    "get_logger",
    "give_usual_limit",
    "gpu_variables",
    "heed",
    "hosts_that_ask",
    "import_pyarrow",
    "interface_addresses",
    "is_own_host",
    "job_text",
    "line",
    "log",
    "memory_in_mib",
    "new_job_id",
    "new_key",
    "not_an_array",
    "numbered_name",
    "on_thread",
    "option",
    "own_address",
    "own_agent",
    "performance",
    "plan_hosts",
    "poll",
    "program_of",
    "rank_variables",
    "render",
    "results_of",
    "results_wanted",
    "route_address",
    "run_job",
    "run_job_on",
    "say",
    "seconds",
    "serve_container",
    "serve_job",
    "share_out",
    "shared",
    "signal_name",
    "single_server_topology",
    "started_again",
    "thread_variables",
    "variable",
    "visible_gpus",
    "wait_for_key",
    "with_tf_config",
    "without_outer_job",
    "write_private",
]
