"""The share of tile memory that plans of products and convolutions may use, by IPU.

Source: popxl-addons: popxl_addons/transforms/available_memory_proportion.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipuperf import ir as _ir
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments

_ATTRIBUTE = "available_memory_proportion"


@checked_arguments
def set_available_memory_proportion_by_ipu(ir: popxl.Ir, proportions: Iterable[float]) -> None:
    """Let each op of the program that is planned use ``proportions[n]`` of its tiles' memory, ``n`` being its IPU; what
    an op was given itself is replaced. IPUs beyond the last have the first proportion, as ops without an IPU.

    Raises:
        ValueError: no proportions, or one that is not above 0 and at most 1.
    """
    _set(ir._ir.all_graphs(), _checked(proportions))


@checked_arguments
def set_graph_available_memory_proportion_by_ipu(graph: popxl.Graph, proportions: Iterable[float]) -> None:
    """As :func:`set_available_memory_proportion_by_ipu` for the ops of ``graph`` and of all graphs that it executes."""
    _set(_ir.below(graph._base), _checked(proportions))


def _checked(proportions: Iterable[float]) -> Sequence[float]:
    shares = list(proportions)
    if not shares or not all(0 < value <= 1 for value in shares):
        raise ValueError(f"proportions {shares}: one per IPU is needed, each above 0 and at most 1")
    return shares


def _set(graphs: Iterable[_ir.Graph], proportions: Sequence[float]) -> None:
    for op in (op for graph in graphs for op in graph.ops if _ATTRIBUTE in op.declared):
        ipu = op.ipu or 0
        op.attributes[_ATTRIBUTE] = float(proportions[ipu] if ipu < len(proportions) else proportions[0])


__all__ = ["set_available_memory_proportion_by_ipu", "set_graph_available_memory_proportion_by_ipu"]
