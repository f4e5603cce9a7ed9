"""Windows over spatial axes: pooling, regions of interest, interpolation."""
