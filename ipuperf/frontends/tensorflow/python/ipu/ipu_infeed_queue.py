"""``tensorflow.python.ipu.ipu_infeed_queue``: see :mod:`ipuperf.tensorflow.programs.infeed`."""

from ...programs.infeed import IPUInfeedQueue, IPUIterator, IPUOwnedIterator

__all__ = ["IPUInfeedQueue", "IPUIterator", "IPUOwnedIterator"]
