"""``tfcollective bench allreduce``: latency and bandwidth of all-reduce, ours and others', in turns."""
