"""``tf.train``: the optimisers."""

from .optimizer import AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer, Optimizer

__all__ = ["AdamOptimizer", "GradientDescentOptimizer", "MomentumOptimizer", "Optimizer"]
