"""Holds ``tensorflow.python.ipu``."""
