"""From a job to its outcome: a specification, a plan, a launcher that carries it out, and a report.

The rooms, in the order in which a job goes through them:

* ``plan``: what is to run, and which process that makes on which host, with which environment. Decides; starts nothing.
* ``running``: the job while it runs: its coordinator, its agents, the function that its ranks call.
* ``nodes``: agents that enroll with the coordinator from other hosts: what both sides do, and say to each other.
* ``hosted``: jobs whose launcher runs on the platform: what both sides do, and say to each other.
* ``outcome``: how it ended: the report and exit code, whether it starts again, what MLflow is told.
* ``system``: what all of these ask of the host that they run on.

``launcher`` says what a launcher is, ``registry`` finds one by its name, ``local`` and ``joined`` are the two that need
no platform; ``api`` is ``tfcollective.run``. The floors are in ``pyproject.toml``.
"""
