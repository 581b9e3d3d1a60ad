"""The machine that a process runs on: cores, GPUs, addresses and free ports."""
