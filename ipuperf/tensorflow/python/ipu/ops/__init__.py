"""``tensorflow.python.ipu.ops``."""
