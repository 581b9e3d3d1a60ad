"""Launches jobs: from a specification over a plan and the nodes that carry it out to an outcome and its report.

In the order in which a job goes through them:

* ``plan``: the job, and which process it makes on which host, with which environment. Decides; starts nothing.
* ``provider``: what a platform implements: request nodes, release them, say what becomes of them. ``providers`` are
  those that need no platform.
* ``gather``: waits until the nodes have come. ``nodes``: holds them and their agents. ``run``: the way of a job on
  nodes, from its open coordinator to its outcome.
* ``reconciler``: keeps the processes of an elastic job as ``plan.placement`` wants them. ``node_scaler`` starts agents
  for it while the job runs, or takes in those that come by themselves; ``discovery`` asks a script for the hosts.
* ``running``: what a job has while it runs: its coordinator, and the function that its ranks call.
* ``hosted``: jobs whose launcher runs on the platform: what both sides do, and say to each other.
* ``outcome``: how it ended: the report and exit code, whether it starts again, what MLflow gets.
* ``system``: signals, ssh, and what a dead agent has left, on the machine of the launcher.

``launcher`` says what a launcher is, what it takes besides the options of every job, and finds one by its name;
``api`` is ``tfcollective.run``. What imports what is in ``pyproject.toml``.
"""
