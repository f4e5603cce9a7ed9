"""Recurrent layers: one op for all time steps, its cells and its backward pass."""
