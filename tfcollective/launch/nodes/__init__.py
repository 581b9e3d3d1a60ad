"""Nodes that enroll with the coordinator of a job: the launcher's side, the node's side, and what they say."""
