"""What tests of modules use: counting ops, and running a module on host data.

Source: popxl-addons: popxl_addons/testing_utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments

from .module import Module
from .named_tensors import NamedTensors
from .ops import host_store

Weights = Mapping[Any, Any] | Callable[[NamedTensors], Mapping[Any, Any]]


@checked_arguments
def ops_of_type(ops: Iterable[Any], op_type: type | tuple[type, ...]) -> int:
    """How many of ``ops`` are instances of ``op_type``."""
    return sum(isinstance(op, op_type) for op in ops)


class TensorInput:
    """Host data that is to be a tensor of the program.

    Args:
        dtype: of the tensor (default: that of the data, 64-bit types narrowed).
    """

    @checked_arguments
    def __init__(self, data: np.ndarray, dtype: popxl.dtype | None = None) -> None:
        self.data = data
        self.dtype = dtype

    def variable(self) -> popxl.Variable:
        """A new variable of the current program."""
        return popxl.variable(self.data, self.dtype)


@checked_arguments
def run_module(module: Module, *args: Any, weights: Weights | None = None, **kwargs: Any) -> list[np.ndarray]:
    """Build a module in a program of its own, run it once, and give its outputs as arrays.

    Args:
        args, kwargs: of ``build``; each :class:`TensorInput` becomes a variable, which the graph is called with.
        weights: data of the module's variables, or a function that makes it from the named variables.
    """
    ir = popxl.Ir()
    with ir.main_graph:
        positional = [_given(value) for value in args]
        named = {name: _given(value) for name, value in kwargs.items()}
        factories, graph = module.create_graph(*positional, **named)
        variables = factories.init()
        operands = [value for value in (*positional, *named.values()) if isinstance(value, popxl.Tensor)]
        streams = [host_store(output) for output in graph.bind(variables).call(*operands)]
    with popxl.Session(ir, "ipu_hw") as session:
        if weights is not None:
            session.write_variables_data(weights(variables) if callable(weights) else weights)
        outputs = session.run()
    return [outputs[stream] for stream in streams]


def _given(value: Any) -> Any:
    return value.variable() if isinstance(value, TensorInput) else value


__all__ = ["TensorInput", "ops_of_type", "run_module"]
