"""The coordinator, where the processes of a job meet: membership and a key-value store behind TLS and the job key.

From what is asked to the connection:

* ``messages``: one class for each request, and its answer. ``store_keys``: the keys of the store that all agree on.
* ``state``: pure. ``job`` applies events to all that is known of a job: ``rounds`` (which tasks form the next world,
  and when), ``membership`` (each task, and in words why there is no next world), ``store``, ``enrolments`` (nodes),
  ``processes`` (which are silent), ``output_log``; ``events`` has the events that no request brings, and the effects.
* ``serve``: ``service`` performs the effects, keeps the time, and answers requests that wait (``wakeups``); ``server``
  is TLS in front of it, on a thread of the launcher; without a launcher, in a process that rank 0 starts (``process``,
  ``__main__``). ``gloo_store`` is the store of Horovod's processes.
* ``wire``: ``connection`` and ``serve.tls_stream`` are the two ends of one connection, with ``greeting`` and
  ``certificate``.
* ``client``: what ranks and agents use: ``client`` for one call, ``channel`` for the only loop that asks again,
  ``liveness`` and ``relay`` for heartbeats.
* ``identity``: who this process is. ``records``: how ``tfcollective status`` finds the jobs of this user.
"""
