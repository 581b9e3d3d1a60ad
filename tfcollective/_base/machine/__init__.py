"""What a process asks of the machine that it runs on: cores, GPUs, addresses and free ports."""
