"""The limits and graces of the control side, in one value: a test checks what depends on what.

A limit that no other one depends on (how long to gather lines of output, how often to look at a file) is next to its
use.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The longest time limit that an option, a variable or an argument may name, about 11 days; the C interface has the
#: same. Linux waits for 24 days at most (``poll`` counts milliseconds in 31 bits), and some waits are sums of limits.
MOST_SECONDS = 1e6


def unfit_seconds(value: object, *, above_zero: bool, most: float = MOST_SECONDS) -> str | None:
    """Returns what a time limit must be where this value is not (NaN and infinity never are); None if it is fit."""
    least = "above 0" if above_zero else "0 or more"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return least
    if value > most:
        return f"at most {most:.0f} ({most / 86400:.1f} days)"
    return None if value > 0 or (value == 0 and not above_zero) else least


@dataclass(frozen=True)
class Timing:
    """The limits, in seconds. Tests that need other limits replace fields.

    Heartbeats, and when their absence counts:

    Attributes:
        heartbeat: between two heartbeats of a rank, an agent or a submitter to the coordinator.
        node_heartbeat: the same of a node that waits for its first order; and longest_node_heartbeat: of one whose
            launcher has said how long it may be silent, at most (:meth:`beat_within`).
        relay: how long a rank waits for its node's agent to relay its heartbeats before it sends them to the
            coordinator itself.
        watch: between two checks of the coordinator for silent processes.
        longest_gap: at most so much of the time between two checks counts as silence: in the rest the coordinator
            itself was stopped.
        bundle: how long a newcomer to the world of an elastic job that is ready waits for others that were started
            together with it, while the world trains on.
        cut_off: how long a member of the world may still come to the next one after a peer has seen the end of its
            connection.
        newcomer_silent: a rank that waits to be taken into the world of an elastic job, or has just been, is not waited
            for when it is silent for so long: it is stopped, or its link is cut. A delayed heartbeat may come within
            ``relay``.
        proven: a rank of an elastic job that has trained for so long shows that its host can run ranks: its loss does
            not keep others from being started there.
        first_block: how long nothing is started on a host where ranks of an elastic job are lost before they have
            trained, from the second one in a row on; it doubles with each further one, up to longest_block.
        coordinator_lost: how long a coordinator may be silent before a rank ends, or an agent on its machine, or one
            that waits for its first order.
        host_timeout: how long a host may be silent before it is lost, and its launcher for the host, unless the user
            says otherwise; and least_host_timeout: what the user may say.
        rank_silent: a rank that is silent for so much longer than the operation timeout is killed if its process is
            stopped: no rank waits for it any longer.
        agent_start: how long a coordinator in a process of its own may take until it listens: Python and the modules
            may come from a slow file system.
        submitter_comes: how long a hosted job waits for its submitter's first heartbeat.
        submitter_lost: how long that submitter may be silent before the job is ended.
        job_lost: how long a hosted job's coordinator may be silent before the submitter gives it up: what is left of
            the job has ended by itself then.
        launcher_lost: the same where the platform starts a lost launcher again: it takes some ten minutes to see that a
            host is gone.
        job_lost_after_signal: the same once the submitter has been asked to end the job.

    The end of processes:

    Attributes:
        settle: after a failure, before anything is sent: so that the others fail by themselves and say why.
        terminate: between SIGTERM and SIGKILL, unless a person or a platform asked for the end.
        interrupt: between a requested signal other than SIGTERM and SIGTERM.
        grace: between SIGTERM and SIGKILL when a person or a platform asked for the end, unless the user says
            otherwise: time for a last checkpoint.
        preemption_look: between two checks for a notice that a node will be preempted; and preemption_command: how long
            the user's command for it may take.
        sweep: how long processes that ranks have left may take to end after SIGTERM; and swept: after SIGKILL.
        drain: how long an agent shows the last output; and late_drain: longer, when it is late itself.
        report: how long it sends its last reports where the launcher is gone.
        abandoned: how long an agent may take to end its ranks after the end of its stdin, before it is killed.
        stop_limit: how long an agent may take to end when it is asked to, beyond the grace, before it is killed itself.
        stop_again: the same after a second Ctrl-C.
        order: for an order to reach a node and for its answer.
        stuck: how long an operation may stand still after Ctrl-C before its rank ends it.
        own_error: how long a rank that hears of a lost one waits for what its own connection says of it, which is more.
        cancelled_connect: how long a connect to the other ranks may take to end when it is cancelled.
        leave: for a rank to leave the world; and leave_broken: when the world is broken.
        timeline: how long rank 0, which leaves then, waits for the others' timelines; and timeline_broken: when the
            world is broken.
        tensorboard: how long TensorBoard may take to end when it is asked to; and tensorboard_task: how long its task
            may stay beyond its time.
        coordinator: how long a coordinator in a process of its own may take to end when it is asked to.
        lingering: how long connections may take to close at the coordinator's end.
        event_loop: for a thread with an event loop to answer or to end.
        last_output: how long a submitter waits for the last output.
        platform_knows: how long it waits until the platform says why it has ended the job.

    Stacks of the ranks:

    Attributes:
        stacks: how long a process's thread may take to write its stacks when its agent asks for them: longer, and it
            does not get Python's lock. As long again the handler of a signal may take.
        dump: how long the agents may take together to send those of their ranks.

    Platforms:

    Attributes:
        discovery: from the end of one call of a discovery script to the next one; and discovery_call: how long one may
            take.
        world_looks: between two requests of a launcher for the world while it waits for others to take over from a
            rank.
        mpirun_kills: when mpirun may kill an agent that it has asked to end, beyond the grace.
        mpirun_end: how long mpirun may take to end after the job; and mpirun_abort: after one that has failed, when it
            keeps looking for processes to kill.
        allocation: how long a platform may take to give all containers, unless the user says otherwise.
        submission: for an application to be submitted, besides its files.
        master: for the coordinator to start in the master's container: its Python may have to unpack itself.
        container_margin: how much longer a container waits for its orders than the master for the containers, which
            says what is missing.
        container_news: between two reports of a platform on its containers; and container_end: how long to wait for
            the one that says what has become of a container.
        platform_call: for a call of a platform's.
        application_end: for an application to end after its job, or when it is to be killed.
        pods_start: how long the ranks of a printed manifest wait for each other, unless the user says otherwise: images
            are pulled and nodes are added meanwhile.
        cluster_away: for how long a change is asked for again while a cluster's API server cannot be reached.
        pods_gone: how much longer than the ranks' grace a cluster may take until no pod is there.
        slurm_looks: between two requests for a SLURM job and its nodes: its controller answers many users; and
            slurm_says: how long it may take to say why a node is gone, while the job waits.
        notice: how much longer than the grace a platform leaves a job from its notice to its end, where the job asks
            for that: a batch script of SLURM, and a pod's grace period.
        spark_says: how long Spark may take to say that an executor or a worker is lost: it kills a worker within 5 s.
        spark_abandoned: how long an agent may take to end once its task has closed its stdin, before it is killed; and
            spark_end: how long all tasks of a job may take to end by themselves, and again once they are cancelled.

    A cluster, whose processes stay for several calls:

    Attributes:
        cluster_start: how long its processes may take to be ready, beyond the platform's time.
        cluster_call: how long a call may continue when its cluster ends.
        cluster_stop: how long its launcher may take to end when it is stopped, beyond the grace.

    The checks of an installation:

    Attributes:
        check: for an answer of a driver, a command or a job of two processes; check_name: of a name server; and
            check_start: of a process that imports TensorFlow, or for a cluster to give one container.

    Calls to the coordinator:

    Attributes:
        connect: for a connection to open.
        reply: for an answer, on top of what a call waits for on purpose.
        short_reply: the same where another coordinator's silence must be noticed soon.
        long_reply: the same over a slow network, for a submitter.
        poll: how long one request waits for something to happen; a call that waits longer makes several.
        longest_poll: how long the coordinator lets a request wait.
        join_margin: the coordinator judges the start timeout; a rank gives up this much later.
        retry: between two attempts.
        retry_for: how long to retry what has to succeed.
        next_start: how long an agent waits for a failed start to end: were it to enrol with that, no orders would come.
        rejoin: how long an agent waits for its job to be started again: longer than the longest pause before that.
        remind: between two messages to the user about what is waited for.
        idle: how often a thread that waits for something to send checks whether it is still needed.
    """

    heartbeat: float = 2.0
    node_heartbeat: float = 1.5
    longest_node_heartbeat: float = 3.0
    relay: float = 10.0
    watch: float = 1.0
    longest_gap: float = 2.0
    bundle: float = 3.0
    cut_off: float = 4.0
    newcomer_silent: float = 15.0
    proven: float = 10.0
    first_block: float = 30.0
    longest_block: float = 3600.0
    coordinator_lost: float = 30.0
    host_timeout: float = 15.0
    least_host_timeout: float = 5.0
    rank_silent: float = 10.0
    agent_start: float = 120.0
    submitter_comes: float = 120.0
    submitter_lost: float = 30.0
    job_lost: float = 60.0
    launcher_lost: float = 900.0
    job_lost_after_signal: float = 20.0

    settle: float = 1.5
    terminate: float = 1.2
    interrupt: float = 1.5
    grace: float = 10.0
    preemption_look: float = 2.0
    preemption_command: float = 10.0
    sweep: float = 0.5
    swept: float = 2.0
    drain: float = 1.0
    late_drain: float = 3.0
    report: float = 5.0
    abandoned: float = 5.0
    stop_limit: float = 20.0
    stop_again: float = 5.0
    order: float = 5.0
    stuck: float = 1.0
    own_error: float = 0.2
    cancelled_connect: float = 3.0
    leave: float = 10.0
    leave_broken: float = 0.5
    timeline: float = 5.0
    timeline_broken: float = 1.0
    tensorboard: float = 5.0
    tensorboard_task: float = 30.0
    coordinator: float = 2.0
    lingering: float = 1.0
    event_loop: float = 10.0
    last_output: float = 3.0
    platform_knows: float = 30.0

    stacks: float = 3.0
    dump: float = 12.0

    discovery: float = 1.0
    discovery_call: float = 30.0
    world_looks: float = 0.5
    mpirun_kills: float = 25.0
    mpirun_end: float = 20.0
    mpirun_abort: float = 2.0
    allocation: float = 600.0
    submission: float = 120.0
    master: float = 180.0
    container_margin: float = 60.0
    container_news: float = 5.0
    container_end: float = 8.0
    platform_call: float = 20.0
    application_end: float = 40.0
    pods_start: float = 600.0
    cluster_away: float = 60.0
    pods_gone: float = 90.0
    slurm_looks: float = 10.0
    slurm_says: float = 5.0
    notice: float = 30.0
    spark_says: float = 8.0
    spark_abandoned: float = 10.0
    spark_end: float = 15.0

    cluster_start: float = 300.0
    cluster_call: float = 5.0
    cluster_stop: float = 60.0

    check: float = 60.0
    check_name: float = 20.0
    check_start: float = 180.0

    connect: float = 5.0
    reply: float = 10.0
    short_reply: float = 3.0
    long_reply: float = 15.0
    poll: float = 25.0
    longest_poll: float = 30.0
    join_margin: float = 15.0
    retry: float = 0.5
    retry_for: float = 30.0
    next_start: float = 2.0
    rejoin: float = 90.0
    remind: float = 15.0
    idle: float = 5.0

    def beat_within(self, host_timeout: float) -> float:
        """Returns the seconds between two heartbeats of a node that may be silent for ``host_timeout`` seconds: often
        enough that one may be lost, and no more often, because there may be a thousand nodes.
        """
        return min(self.longest_node_heartbeat, host_timeout / 5)


TIMING = Timing()
