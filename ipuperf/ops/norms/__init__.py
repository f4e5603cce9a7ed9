"""Normalisation: batch, group and distributed norms, Euclidean norms, and what they share."""
