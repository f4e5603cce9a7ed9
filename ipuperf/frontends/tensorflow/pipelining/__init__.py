"""Pipelines: arguments, stages, gradients and updates of ``pipelining_ops.pipeline``."""
