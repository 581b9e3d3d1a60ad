"""What is asked of the host that the launcher runs on: signals, ssh, the end of what a dead agent has left."""
