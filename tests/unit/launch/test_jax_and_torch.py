"""What ranks of JAX and torch find in their environment."""

from tfcollective._base.tasks import NO_RANK, TaskKey
from tfcollective._base.topology import Endpoint
from tfcollective._launch.agent.protocol import WorkerPlan
from tfcollective._launch.plan.planner import plan_local
from tfcollective._launch.plan.rank_variables import meeting_variables
from tfcollective._launch.plan.spec import JobSpec
from tfcollective._launch.running.job import Job

PLACE = Endpoint("10.0.0.7", 20001)


def given(place=PLACE, environ=None, **fields):
    """What each of two ranks is given by a job whose rank 0 may listen at ``place``."""
    spec = JobSpec(("python", "train.py"), 2, **fields)
    plan = plan_local(spec, cores=2, environ=environ or {})
    job = Job(spec, plan)
    job.settle(plan, place)
    return [worker.env for worker in job.agent_config(plan.workers).workers]


def test_all_ranks_meet_at_rank_zero():
    first, second = given()
    expected = {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "10.0.0.7:20001",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
        "KERAS_DISTRIBUTION_PROCESS_ID": "1",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.7:20001",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "20001",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert {name: second[name] for name in expected} == expected
    differs = {name for name in expected if first[name] != second[name]}
    assert differs == {"KERAS_DISTRIBUTION_PROCESS_ID", "JAX_PROCESS_ID", "RANK", "LOCAL_RANK"}


def test_an_address_of_ipv6_is_bracketed_before_ports():
    found = meeting_variables(0, 1, Endpoint("fd00::7", 9))
    assert (found["MASTER_ADDR"], found["JAX_COORDINATOR_ADDRESS"]) == ("fd00::7", "[fd00::7]:9")


def test_what_the_user_gives_the_ranks_stays():
    env = given(environ={"MASTER_PORT": "5"}, env={"MASTER_ADDR": "elsewhere", "JAX_PROCESS_ID": "7"})[0]
    assert (env["MASTER_ADDR"], env["JAX_PROCESS_ID"], env["MASTER_PORT"]) == ("elsewhere", "7", "20001")


def test_elastic_jobs_have_no_such_world():
    for env in (*given(min_proc=1), *given(place=None)):
        assert not [name for name in env if name.startswith(("KERAS_", "JAX_", "MASTER_"))]


def test_auxiliary_tasks_take_no_part():
    beside = WorkerPlan(TaskKey("evaluator", 0), NO_RANK, ("x",), {})
    spec = JobSpec(("x",), 1)
    job = Job(spec, plan_local(spec, cores=1, environ={}))
    job.settle(plan_local(spec, cores=1, environ={}), PLACE)
    assert job.agent_config([beside]).workers == (beside,)
