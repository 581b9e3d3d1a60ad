"""Where the processes of a job meet: membership and a key-value store behind authenticated HTTP.

``client`` is what ranks and agents use, ``server`` is what a launcher runs; import the one that you need.
"""
