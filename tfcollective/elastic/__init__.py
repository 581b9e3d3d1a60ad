"""Training that goes on when ranks come and go.

A program keeps what it needs to go on in a :class:`State`, and trains in a function under :func:`run`. When a rank is
lost, the others take the newest commit and go on in a smaller world; when one joins, it takes its state from them. The
names are those of Horovod.
"""

from tfcollective.elastic.loop import HorovodInternalError, run
from tfcollective.elastic.sampler import ElasticSampler
from tfcollective.elastic.state import HostsUpdatedInterrupt, ObjectState, State

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"]
