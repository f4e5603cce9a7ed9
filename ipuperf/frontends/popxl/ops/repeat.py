"""Loops with a fixed trip count: ``ops.repeat`` and ``ops.repeat_with_info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipuperf import ops as _k
from ipuperf.frontends.options import POPXL as EFFECTS

from ..arguments import checked_arguments
from ..graph import Graph
from ..handle import Tensor
from .call import CallSiteInfo, resolve_operands
from .operands import create


@checked_arguments
def repeat_with_info(
    graph: Graph,
    repeat_count: int,
    *inputs: Any,
    inputs_dict: Mapping[Tensor, Any] | None = None,
    check_inputs: bool = True,
) -> CallSiteInfo:
    """Execute ``graph`` ``repeat_count`` times.

    With N outputs, the first N inputs are loop carried: they get the outputs of the trip before. The other inputs are
    the same in all trips, unless they are by reference.

    Raises:
        ValueError: operands do not fit, a carried input and its output differ in shape or dtype, a negative
            count.
    """
    EFFECTS.given("ops.repeat_with_info(check_inputs)", check_inputs)
    if repeat_count < 0:
        raise ValueError(f"Repeat count must be >= 0: repeat of graph {graph.name!r}: repeat_count is {repeat_count!r}")
    operands = resolve_operands(graph, inputs, inputs_dict, "repeat")
    outputs = graph._base.outputs
    if len(outputs) > len(operands):
        raise ValueError(
            f"To repeat the subgraph {graph.name!r} it needs an input for each output: {len(outputs)} outputs and "
            f"{len(operands)} inputs"
        )
    # upstream makes two tensors per output (the wrapper's and the parent's) and always numbers them
    for _ in outputs:
        next(graph._base.ir.clash_counter)
    names = [f"{t.name}__t{next(graph._base.ir.clash_counter)}" for t in outputs]
    graph._base.ir.take_subgraph_number()  # upstream's wrapper graph
    graph._base.ir.take_op_id()  # and the call in it
    op = create(_k.Loop, operands, names, callee=graph._base, trip_count=repeat_count)
    assert isinstance(op, _k.Op)
    return CallSiteInfo(op)


@checked_arguments
def repeat(
    graph: Graph, repeat_count: int, *inputs: Any, inputs_dict: Mapping[Tensor, Any] | None = None
) -> tuple[Tensor, ...]:
    """As :func:`repeat_with_info`, giving the results: always a tuple."""
    return tuple(repeat_with_info(graph, repeat_count, *inputs, inputs_dict=inputs_dict).outputs)
