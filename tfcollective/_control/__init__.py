"""Where the processes of a job meet: membership and a key-value store behind authenticated HTTP.

``client`` is what ranks and agents use, ``server`` is what a launcher runs; import the one that you need. From the
decision to the connection:

* ``rounds``: which tasks form the next world, and when. ``state``: the membership, what is known of each task, and in
  words why there is no next world. ``store``: values with versions, ``blobs``: bytes among them. ``job_state``: all of
  these. Pure.
* ``liveness``: signs of life and the judge of their absence; ``relay``: those that a node's agent hands on.
* ``service``: answers the requests of ``messages`` out of that state, wakes those that wait (``wakeups``), keeps time.
* ``server``: HTTP in front of it. ``door`` and ``connection`` are the two ends of one connection, with ``auth``,
  ``certificate``, ``connection_limiter`` and ``refusals``.
* ``client``: one call each; ``channel``: the only loop that asks again.
* ``server`` runs on a thread of the launcher; without a launcher, in a process that rank 0 starts (``process``,
  ``__main__``).
* ``records``: how ``tfcollective status`` finds the jobs of this user. ``output_log``: the last output of a job's
  nodes. ``gloo_store``: the store of Horovod's processes.
"""
