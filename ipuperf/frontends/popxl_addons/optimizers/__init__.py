"""Optimiser steps as modules: one graph per variable, the optimiser's state being its named inputs."""

from .adam import AdamOptimizerStep

__all__ = ["AdamOptimizerStep"]
