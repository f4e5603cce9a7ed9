"""``tensorflow.python.ipu.ipu_outfeed_queue``: see :mod:`ipuperf.tensorflow.outfeed`."""

from ...outfeed import IPUOutfeedMode, IPUOutfeedQueue

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue"]
