"""The agent: enrols its node with the coordinator of a job, runs and watches the processes of that node.

One process a node, however it was started; see :mod:`tfcollective._launch.agent.main`. A launcher that starts it
writes its settings as one line of JSON to its stdin, then its orders, and keeps that pipe open: at the end of the pipe
the agent knows that the launcher is gone. An agent that a person or a platform starts asks the coordinator for orders.
"""
