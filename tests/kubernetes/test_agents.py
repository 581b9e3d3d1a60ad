"""A launcher Job, and an Indexed Job of agents that join it."""

import pytest
from kubernetes_manifests import agents, launcher, secret, service

pytestmark = [pytest.mark.kubernetes, pytest.mark.multiprocess]
ELASTIC = ("-np", "2", "--min-np", "1", "--max-np", "4")


def of_launcher(cluster):
    return cluster.merged_log("train-launcher")


def of_ranks(cluster):
    """Agents show what their ranks say."""
    return cluster.merged_log("train-agents")


def test_launcher_and_agents_share_a_secrets_key(cluster):
    cluster.apply(secret(), service(), launcher("-np", "4", "--wait-for-agents", "2", "python", "ranks.py"))
    cluster.apply(agents(2, "--slots", "2"))
    assert cluster.wait_for_job("train-launcher") == "Complete"
    assert cluster.wait_for_job("train-agents") == "Complete"
    assert of_ranks(cluster).count("of 4 sum 10.0 local size 2") == 4


def test_a_waiting_agent_ends_on_sigterm(cluster):
    cluster.apply(secret(), service(), agents(1))
    pod = cluster.wait_until(lambda: cluster.pods("train-agents"))[0]["metadata"]["name"]
    cluster.wait_until(lambda: cluster.process_handles_sigterm(pod))
    cluster.delete("Job", "train-agents", propagation="Foreground")
    cluster.wait_until(lambda: cluster.get("Job", "train-agents") is None)
    assert cluster.container_ends() == {"train-agents-0": [143]}


def test_a_waiting_launcher_ends_on_sigterm(cluster):
    cluster.apply(secret(), service(), launcher("-np", "1", "--wait-for-agents", "1", "python", "ranks.py"))
    cluster.wait_until(lambda: "run this on one host" in of_launcher(cluster))
    cluster.delete("Job", "train-launcher", propagation="Foreground")
    cluster.wait_until(lambda: cluster.get("Job", "train-launcher") is None)
    assert cluster.container_ends() == {"launcher": [143]}


def test_agents_rejoin_a_restarted_job(cluster):
    run = ("-np", "2", "--wait-for-agents", "2", "--max-restarts", "1", "python", "ranks.py")
    cluster.apply(secret(), service(), launcher(*run), agents(2, env=[("CRASH_ONCE", "/shared"), ("STEPS", "20")]))
    assert cluster.wait_for_job("train-launcher") == "Complete"
    assert cluster.wait_for_job("train-agents") == "Complete"
    assert cluster.container_ends("train-agents") == {"train-agents-0": [0], "train-agents-1": [0]}  # each ran once
    assert of_ranks(cluster).count("of 2 sum 3.0") == 4


def test_an_evicted_pods_successor_joins_the_restart(cluster):
    run = ("-np", "2", "--wait-for-agents", "2", "--max-restarts", "2", "python", "ranks.py")
    cluster.apply(secret(), service(), launcher(*run), agents(2, env=[("STEPS", "100")]))
    cluster.wait_until(lambda: of_ranks(cluster).count("of 2 sum 3.0") == 2)
    cluster.evict(cluster.pods("train-agents")[0]["metadata"]["name"])
    assert cluster.wait_for_job("train-launcher", 180) == "Complete"
    assert of_ranks(cluster).count("of 2 sum 3.0") == 4
    assert len(cluster.container_ends("train-agents")["train-agents-0"]) == 2


def test_a_launcher_without_a_route_is_found(make_cluster):
    cluster = make_cluster(default_route=False)
    cluster.apply(secret(), service(), launcher("-np", "1", "--wait-for-agents", "1", "python", "ranks.py"), agents(1))
    assert cluster.wait_for_job("train-launcher") == "Complete"
    assert "--join 10.214." in of_launcher(cluster)


# ---- elastic jobs ----------------------------------------------------------------------------------------------------


def start_elastic(cluster, count=2, **options):
    run = (*ELASTIC, "--wait-for-agents", str(count), "python", "elastic_ranks.py")
    cluster.apply(secret(), service(), launcher(*run, env=[("PYTHONUNBUFFERED", "1")]))
    cluster.apply(agents(count, "--slots", "1", env=[("UNTIL", "/shared/enough")], **options))
    cluster.wait_until(lambda: count in sizes(cluster), 120)


def finish(cluster):
    """Lets the ranks end."""
    (cluster.folder / "claim-shared" / "enough").touch()
    assert cluster.wait_for_job("train-launcher", 120) == "Complete"


def sizes(cluster):
    """The sizes of the worlds of rank 0, in their order."""
    return [int(line.rpartition(" ")[2]) for line in of_ranks(cluster).splitlines() if "world of size" in line]


def wait_for_sizes(cluster, *wanted):
    """Until the worlds that began after the first had these sizes, others between them."""

    def seen():
        rest = iter(sizes(cluster))
        return all(size in rest for size in wanted)

    cluster.wait_until(seen, 180)


def test_an_evicted_pod_leaves_and_is_replaced(cluster):
    start_elastic(cluster)
    victim = cluster.pods("train-agents")[1]["metadata"]["name"]
    cluster.evict(victim)
    wait_for_sizes(cluster, 2, 2)
    assert "leaves the job gracefully" in of_ranks(cluster)
    finish(cluster)
    assert cluster.container_ends("train-agents")["train-agents-1"][0] == 143


def test_a_pod_that_is_killed_is_replaced(cluster):
    start_elastic(cluster)
    cluster.signal(cluster.pods("train-agents")[1]["metadata"]["name"])
    wait_for_sizes(cluster, 2, 2)  # perhaps one of size 1 between them
    finish(cluster)


def test_a_pod_that_a_person_deletes_is_replaced(cluster):
    start_elastic(cluster)
    cluster.delete("Pod", cluster.pods("train-agents")[1]["metadata"]["name"])
    wait_for_sizes(cluster, 2, 2)
    finish(cluster)


def test_the_job_outlasts_the_loss_of_a_node(make_cluster):
    few = {"pods": "2"}
    cluster = make_cluster(nodes={"node-1": few, "node-2": few})
    start_elastic(cluster)
    on_launchers = cluster.pods("train-launcher")[0]["spec"]["nodeName"]
    lost = ({"node-1", "node-2"} - {on_launchers}).pop()
    cluster.lose_node(lost)
    wait_for_sizes(cluster, 2, 1)
    cluster.add_node("node-3", pods="2")
    cluster.forget_node(lost)
    wait_for_sizes(cluster, 2, 1, 2)
    finish(cluster)


def test_the_job_grows_with_its_agents(cluster):
    start_elastic(cluster)
    cluster.scale("train-agents", 3)
    wait_for_sizes(cluster, 2, 3)
    finish(cluster)
