"""``tensorflow.python.ipu.ipu_outfeed_queue``: see :mod:`ipuperf.tensorflow.programs.outfeed`."""

from ...programs.outfeed import IPUOutfeedMode, IPUOutfeedQueue

__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue"]
