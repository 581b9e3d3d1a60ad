"""The agent: runs and watches the processes of one node.

A launcher starts it as a separate process, writes its configuration as one line of JSON to its stdin and keeps that
pipe open: the end of the pipe is how the agent learns that the launcher is gone. See :mod:`tfcollective.agent.main`.
"""
