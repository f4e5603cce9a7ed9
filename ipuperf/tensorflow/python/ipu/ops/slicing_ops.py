"""Slices of sequences."""

from ....refusals import refused

_INSTEAD = "lengths that depend on data would make shapes dynamic; use tf.slice with fixed sizes, or masks"
sequence_slice = refused("slicing_ops.sequence_slice", _INSTEAD)
sequence_slice_unpack = refused("slicing_ops.sequence_slice_unpack", _INSTEAD)
sequence_slice_pack = refused("slicing_ops.sequence_slice_pack", _INSTEAD)

__all__ = ["sequence_slice", "sequence_slice_pack", "sequence_slice_unpack"]
