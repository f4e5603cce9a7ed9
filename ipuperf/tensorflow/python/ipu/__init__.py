"""``tensorflow.python.ipu``: the IPU interface of TensorFlow 1 and 2."""

from . import (
    config,
    dataset_benchmark,
    gradient_accumulation,
    ipu_compiler,
    ipu_infeed_queue,
    ipu_outfeed_queue,
    ipu_strategy,
    loops,
    ops,
    optimizers,
    pipelining_ops,
    scopes,
    utils,
)
from .optimizers import cross_replica_optimizer, gradient_accumulation_optimizer, map_gradient_optimizer

__all__ = [
    "config",
    "cross_replica_optimizer",
    "dataset_benchmark",
    "gradient_accumulation",
    "gradient_accumulation_optimizer",
    "ipu_compiler",
    "ipu_infeed_queue",
    "ipu_outfeed_queue",
    "ipu_strategy",
    "loops",
    "map_gradient_optimizer",
    "ops",
    "optimizers",
    "pipelining_ops",
    "scopes",
    "utils",
]
