"""Training that continues when ranks come and go.

A program keeps what it needs to go on in a :class:`State`, and trains in a function under :func:`run`. When a rank is
lost, the others take the newest commit and go on in a smaller world; when one joins, it takes its state from them. The
names are those of Horovod.

``state`` says what is kept and how ranks take it from each other, ``loop`` what a rank does when the world changes, and
``sampler`` which data it takes. Nothing here imports TensorFlow: states of variables are in ``tensorflow.elastic`` and
``keras.elastic``, and ``fit`` is in ``keras.elastic_fit``. Which ranks come and go is decided by ``control.rounds``.
"""

from tfcollective.elastic._loop import HorovodInternalError, run
from tfcollective.elastic._sampler import ElasticSampler
from tfcollective.elastic._state import HostsUpdatedInterrupt, ObjectState, State

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"]
