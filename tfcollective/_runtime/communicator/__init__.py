"""A connected world over numpy arrays: the smallest useful part of tfcollective.

>>> import numpy as np, tfcollective
>>> tfcollective.init()
>>> world = tfcollective.get_communicator()
>>> world.allreduce(np.ones(3), op=tfcollective.Sum)      # on 2 processes: array([2., 2., 2.])
"""

from tfcollective._runtime.communicator.api import Communicator
from tfcollective._runtime.communicator.cancellation import Cancellation
from tfcollective._runtime.communicator.listener import Listener
from tfcollective._runtime.communicator.native import NativeCommunicator
from tfcollective._runtime.communicator.values import (
    Average,
    CommunicatorInfo,
    CommunicatorOptions,
    Max,
    Min,
    Op,
    Product,
    Sum,
)

__all__ = [
    "Average",
    "Cancellation",
    "Communicator",
    "CommunicatorInfo",
    "CommunicatorOptions",
    "Listener",
    "Max",
    "Min",
    "NativeCommunicator",
    "Op",
    "Product",
    "Sum",
]
