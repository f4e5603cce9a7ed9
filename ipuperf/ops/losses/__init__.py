"""Softmax and the losses that stand on it."""
