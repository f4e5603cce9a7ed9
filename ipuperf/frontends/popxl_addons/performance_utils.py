"""Floating-point operations of a program, op by op, by upstream's counting rules.

Counted are matrix products (2 for each element and step of the sum), sums, differences, products and quotients of
elements (1 each) and group norms; ops in place and everything else count as nothing, as upstream. (What the simulated
device does is in the report of a run.)

Source: popxl-addons: popxl_addons/performance_utils.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.base.near_names import instead_of
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.utils import table_to_string

Breakdown = dict[str, Any]
"""Type of op -> (id of an op -> operations, or a called graph -> its own such mapping); ``TOT`` -> the sum."""

POWERS = {"K": 3, "M": 6, "G": 9, "T": 12}
FORMATS = (*POWERS, "nearest3")
_SUBGRAPH = re.compile(r"_subgraph\(\d+\)")


@checked_arguments
def total_FLOPs(ir: popxl.Ir) -> int:
    """The operations of a run's main graph on all replicas."""
    return int(evaluate_ir_FLOPs(ir)["TOT"])


@checked_arguments
def evaluate_ir_FLOPs(ir: popxl.Ir) -> Breakdown:
    """The operations of the main graph, times the replicas."""
    breakdown: Breakdown = _times(evaluate_FLOPs(ir.main_graph), ir.replication_factor)
    return breakdown


@checked_arguments
def evaluate_FLOPs(graph: popxl.Graph) -> Breakdown:
    """The operations of a graph on one replica, with those of the graphs that it calls and repeats."""
    counted: dict[_ir.Graph, Breakdown] = {}
    with graph._base.ir.deep_calls():
        return _counted(graph._base, counted)


def _counted(graph: _ir.Graph, known: dict[_ir.Graph, Breakdown]) -> Breakdown:
    if graph in known:
        return known[graph]
    breakdown: Breakdown = {"TOT": 0}
    for op in graph.ops:
        if op.called_graphs():
            _add_called(breakdown, op, known)
        elif op.type in _RULES:
            operations = _RULES[op.type](op)
            breakdown.setdefault(op.type, {})[op.id] = operations
            breakdown["TOT"] += operations
    total = breakdown.pop("TOT")
    known[graph] = {**breakdown, "TOT": total}
    return known[graph]


def _add_called(breakdown: Breakdown, op: _ir.Op, known: dict[_ir.Graph, Breakdown]) -> None:
    """What a call, loop or branch does; of a conditional the branch with more operations."""
    callee_flops = max((_counted(callee, known) for callee in op.called_graphs()), key=lambda flops: flops["TOT"])
    if isinstance(op, _k.Loop):
        callee_flops = _times(callee_flops, op.trip_count)
    name = _SUBGRAPH.sub("", op.called_graphs()[0].name)
    breakdown["TOT"] += callee_flops["TOT"]
    for kind, operations in callee_flops.items():
        if kind != "TOT":
            breakdown.setdefault(kind, {})[f"{op.type}_{op.id}({name})"] = operations


def _times(value: Any, factor: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _times(part, factor) for key, part in value.items()}
    return value * factor


def _sum(value: Any) -> int:
    return sum(map(_sum, value.values())) if isinstance(value, Mapping) else int(value)


def _product(op: _ir.Op) -> int:
    return 2 * op.inputs[0].shape[-1] * math.prod(op.outputs[0].shape)


def _elementwise(op: _ir.Op) -> int:
    return math.prod(op.outputs[0].shape)


def _group_norm(op: _ir.Op) -> int:
    """Mean and variance of the elements of a group once, and four operations for each element of the result."""
    shape, statistics = op.inputs[0].shape, op.outputs[1].shape[0]
    groups = statistics // shape[0]
    averaged = math.prod(shape[-2:]) // groups
    return 3 * averaged + 2 * statistics + 4 * math.prod(op.outputs[0].shape)


_RULES = {
    "Add": _elementwise,
    "Sub": _elementwise,
    "Div": _elementwise,
    "Mul": _elementwise,
    "MatMul": _product,
    "GroupNormalization": _group_norm,
}


# -- printing ----------------------------------------------------------------------------------------------------------


@checked_arguments
def print_FLOPs(
    flops_breakdown: Mapping[str, Any],
    mode: Literal["type", "flat"] = "type",
    numerical_format: Literal["K", "M", "G", "T", "nearest3"] = "nearest3",
) -> None:
    """Print a breakdown as a table, largest first.

    Args:
        mode: ``type``: a row for each type of op; ``flat``: a row for each op.
        numerical_format: see :func:`format_flops_scientific`.

    Raises:
        ValueError: another mode or format.
    """
    if mode not in ("type", "flat"):
        raise ValueError(f"print_FLOPs: mode {mode!r}; allowed: type, flat")
    rows = _by_type(flops_breakdown, numerical_format) if mode == "type" else _flat(flops_breakdown, numerical_format)
    print(table_to_string(rows))


def _by_type(breakdown: Mapping[str, Any], style: str) -> list[list[str]]:
    sums = sorted(((_sum(value), kind) for kind, value in breakdown.items()), key=lambda entry: -entry[0])
    total = max(_sum(breakdown["TOT"]), 1)
    rows = [[kind, format_flops_scientific(value, style), f"{100 * value / total:.1f}"] for value, kind in sums]
    return [["Op Type", "FLOPs", "%"], *rows]


def _flat(breakdown: Mapping[str, Any], style: str) -> list[list[str]]:
    leaves = sorted(_leaves(breakdown), key=lambda leaf: -leaf[1])
    rows = [[name.partition(".")[0], format_flops_scientific(value, style), name] for name, value in leaves]
    return [["Op Type", "FLOPs", "Op Name"], *rows]


def _leaves(breakdown: Mapping[str, Any], prefix: str = "") -> list[tuple[str, int]]:
    leaves: list[tuple[str, int]] = []
    for key, value in breakdown.items():
        name = f"{prefix}{key}"
        leaves += _leaves(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
    return leaves


@checked_arguments
def format_flops_scientific(val: float, format: str = "nearest3") -> str:
    """``val`` with three decimals and a power of ten: that of ``K``, ``M``, ``G`` or ``T``, or the multiple of three
    nearest to its own.

    Raises:
        ValueError: another format.
    """
    if format not in FORMATS:
        raise ValueError(f"format_flops_scientific: format {format!r}{instead_of(format, FORMATS)}")
    power = POWERS.get(format)
    if power is None:
        exponent = math.floor(math.log10(abs(val))) if val > 0 else 0
        power = 3 * (exponent // 3 + (exponent % 3 == 2))
    return f"{val * 10.0**-power:.3f}E{'-' if power < 0 else '+'}{abs(power):02d}"


__all__ = [
    "evaluate_FLOPs",
    "evaluate_ir_FLOPs",
    "format_flops_scientific",
    "print_FLOPs",
    "total_FLOPs",
]
