"""What is asked of the host that this process runs on: addresses, cores, signals, what a dead agent has left."""
