"""``tensorflow.python.ipu.ops``: operations of the IPU."""
