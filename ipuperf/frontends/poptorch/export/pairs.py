"""Complex numbers as pairs of real ones: the IPU has no complex type.

Each op of a complex tensor becomes those of its real and its imaginary part, as PyTorch's ``ComplexTensor`` writes
them. Fourier transforms are products with constant matrices. A parameter, buffer or constant is a real tensor with an
axis of two more, as ``torch.view_as_real`` shows it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch._subclasses.complex_tensor import ComplexTensor
from torch.export.graph_signature import InputKind

from ..aten.table import name_of
from ..errors import UnsupportedError
from .inlining import graph_of, inlined
from .lines import location_of_node, tags_of
from .reuse import Simplified, argument_of, seen_of, with_graph

Pair = tuple[torch.fx.Node, torch.fx.Node]


def without_complex(program: Any) -> Simplified:
    """``program`` with real tensors only.

    Raises:
        UnsupportedError: a result of the model is complex, or an op has no rule.
    """
    nodes = list(program.graph.nodes)
    if not any(_is_complex(node.meta.get("val")) for node in nodes):
        return cast(Simplified, program)
    return _Rewriting(program).done()


def _is_complex(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in pytree.tree_leaves(value))


class _Rewriting:
    """A graph of real tensors under construction; ``values`` holds what each node of the program is there."""

    def __init__(self, program: Any) -> None:
        self.program, self.graph = program, torch.fx.Graph()
        self.values: dict[torch.fx.Node, Any] = {}
        self.constants = dict(program.constants)
        self._rules: dict[str, tuple[torch.fx.Graph, Any]] = {}

    def done(self) -> Simplified:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node, specs[node.name])
            elif node.op == "output":
                self._output(node)
            elif node.target is operator.getitem and not isinstance(self.values[node.args[0]], torch.fx.Node):
                self.values[node] = self.values[node.args[0]][node.args[1]]
            elif _is_complex([node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]):
                self.values[node] = self._parts(node)
            else:
                self.values[node] = self.graph.node_copy(node, self.values.__getitem__)
        return replace(with_graph(self.program, self.graph), constants=self.constants)

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> torch.fx.Node | Pair:
        copy = self.graph.node_copy(node)
        if not _is_complex(node.meta.get("val")):
            return copy
        if spec.kind == InputKind.CONSTANT_TENSOR:
            self.constants[spec.target] = torch.view_as_real(self.constants[spec.target].resolve_conj())
        shown = torch.view_as_real(node.meta["val"])
        copy.meta = {**copy.meta, "val": shown}
        ops = graph_of(lambda x: x.unbind(-1), [shown])
        real, imaginary = inlined(self.graph, ops, [copy], tags_of(node))
        return real, imaginary

    def _output(self, node: torch.fx.Node) -> None:
        for result in node.all_input_nodes:
            if _is_complex(result.meta.get("val")):
                raise UnsupportedError(
                    f"{location_of_node(result)}: a result of the model is complex, which no stream of an IPU is; "
                    "return torch.view_as_real(x)"
                )
        self.graph.node_copy(node, self.values.__getitem__)

    def _parts(self, node: torch.fx.Node) -> Any:
        """What takes the place of an op with complex operands or results: a node, a pair, or several of these."""
        operands = [self.values[operand] for operand in node.all_input_nodes]
        leaves = [leaf for value in operands for leaf in (value if isinstance(value, tuple) else (value,))]
        places = {operand: index for index, operand in enumerate(node.all_input_nodes)}
        kind = torch.fx.map_arg((node.args, node.kwargs), lambda n: f"operand {places[n]}")
        key = repr((str(node.target), argument_of(kind), [seen_of(leaf.meta["val"]) for leaf in leaves]))
        if key not in self._rules:
            self._rules[key] = self._rule(node, operands, [leaf.meta["val"] for leaf in leaves])
        ops, structure = self._rules[key]
        return pytree.tree_unflatten(inlined(self.graph, ops, leaves, tags_of(node)), structure)

    def _rule(
        self, node: torch.fx.Node, operands: Sequence[Any], examples: Sequence[torch.Tensor]
    ) -> tuple[torch.fx.Graph, Any]:
        """The ops of an op, and how their results are those of the op (a pair for a complex one)."""
        structure: Any = None

        def run(*parts: torch.Tensor) -> Sequence[torch.Tensor]:
            nonlocal structure
            waiting = iter(parts)
            pairs = [
                ComplexTensor(next(waiting), next(waiting)) if isinstance(value, tuple) else next(waiting)
                for value in operands
            ]
            op: Any = node.target
            target: Any = _OWN.get(name_of(op), op)
            if target is op and not any(isinstance(part, ComplexTensor) for part in pairs):
                # Only a number of Python is complex, or the type that is asked for.
                pairs = [ComplexTensor(part, torch.zeros_like(part)) for part in pairs]
            known = dict(zip(node.all_input_nodes, pairs, strict=True))
            declared = zip(_with(node.args, known), op._schema.arguments, strict=False)
            args = [_as_tensor(value) if str(argument.type) == "Tensor" else value for value, argument in declared]
            result = target(*args, **_with(node.kwargs, known))
            split = pytree.tree_map_only(ComplexTensor, lambda z: (z.re, z.im), result)
            tensors, structure = pytree.tree_flatten(split)
            return tensors

        try:
            return graph_of(run, examples), structure
        except (TypeError, NotImplementedError) as error:
            raise UnsupportedError(
                f"{location_of_node(node)}: {name_of(node.target)} of complex numbers, which are pairs on the IPU, is "
                "unsupported; compute it with the real and the imaginary part"
            ) from error


def _with(arguments: Any, known: Any) -> Any:
    return pytree.tree_map_only(torch.fx.Node, known.__getitem__, arguments)


def _as_tensor(value: Any) -> Any:
    """An operand: a number of Python as a tensor without axes."""
    if isinstance(value, complex):
        return ComplexTensor(torch.full((), value.real), torch.full((), value.imag))
    return torch.full((), float(value)) if isinstance(value, (int, float)) else value


# -- rules of our own --------------------------------------------------------------------------------------------------


def _converted(x: Any, **_: Any) -> torch.Tensor:
    """A conversion: single precision is all that there is, and what is real has no imaginary part."""
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x.float(), torch.zeros_like(x.float()))


def _polar(length: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return ComplexTensor(length * torch.cos(angle), length * torch.sin(angle))


def _view_as_complex(x: torch.Tensor) -> torch.Tensor:
    return ComplexTensor(*x.unbind(-1))


def _view_as_real(z: Any) -> torch.Tensor:
    return torch.stack([z.re, z.im], -1)


def _abs(z: Any) -> torch.Tensor:
    """The length; its gradient at 0 is 0, as PyTorch's."""
    squares = z.re * z.re + z.im * z.im
    nothing = squares == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).sqrt())


def _turns(rows: int, columns: int, length: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of ``2 pi n k / length``, the product reduced as whole numbers so that none is inexact."""
    products = torch.arange(rows)[:, None] * torch.arange(columns)[None]
    angles = (products % length).to(torch.float64) * (2 * math.pi / length)
    return torch.cos(angles).to(like.dtype), torch.sin(angles).to(like.dtype)


def _along(x: torch.Tensor, matrix: torch.Tensor, dim: int) -> torch.Tensor:
    """``x @ matrix`` along an axis."""
    lines = torch.movedim(x, dim, -1)
    product = lines.reshape(-1, matrix.shape[0]) @ matrix
    return torch.movedim(product.reshape(*lines.shape[:-1], -1), -1, dim)


def _scaled(z: Any, lengths: Sequence[int], normalization: int) -> Any:
    """PyTorch counts normalisations: 0 none, 1 by the root of the number of elements, 2 by the number."""
    count = math.prod(lengths)
    factor = (1.0, 1 / math.sqrt(count), 1 / count)[normalization]
    if factor == 1.0:
        return z
    return ComplexTensor(z.re * factor, z.im * factor) if isinstance(z, ComplexTensor) else z * factor


def _transformed(z: Any, dims: Sequence[int], sign: int) -> Any:
    """Sums over ``n`` of ``z exp(sign 2 pi i n k / N)`` along each axis."""
    for dim in dims:
        length = z.shape[dim]
        cosine, sine = _turns(length, length, length, z.re)
        real = _along(z.re, cosine, dim) - sign * _along(z.im, sine, dim)
        z = ComplexTensor(real, sign * _along(z.re, sine, dim) + _along(z.im, cosine, dim))
    return z


def _of_complex(z: Any, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    """``_fft_c2c``."""
    turned = _transformed(z, dims, -1 if forward else 1)
    return _scaled(turned, [z.shape[dim] for dim in dims], normalization)


def _of_real(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    """``_fft_r2c``: the last of the axes first, of which one half may be asked for."""
    length = x.shape[dims[-1]]
    cosine, sine = _turns(length, length // 2 + 1 if onesided else length, length, x)
    half = ComplexTensor(_along(x, cosine, dims[-1]), -_along(x, sine, dims[-1]))
    return _scaled(_transformed(half, dims[:-1], -1), [x.shape[dim] for dim in dims], normalization)


def _to_real(z: Any, dims: Sequence[int], normalization: int, last: int) -> torch.Tensor:
    """``_fft_c2r``: of half a spectrum; what is between its ends stands for two numbers."""
    whole = [*(z.shape[dim] for dim in dims[:-1]), last]
    z = _transformed(z, dims[:-1], 1)
    length = z.shape[dims[-1]]
    cosine, sine = _turns(length, last, last, z.re)
    alone = torch.arange(length) * 2 % last == 0
    weights = torch.where(alone, 1.0, 2.0).to(z.re.dtype)[:, None]
    result = _along(z.re, weights * cosine, dims[-1]) - _along(z.im, weights * sine, dims[-1])
    return cast(torch.Tensor, _scaled(result, whole, normalization))


_OWN = {
    "aten::_fft_c2c": _of_complex,
    "aten::_fft_c2r": _to_real,
    "aten::_fft_r2c": _of_real,
    "aten::_to_copy": _converted,
    "aten::abs": _abs,
    "aten::complex": ComplexTensor,
    "aten::polar": _polar,
    "aten::view_as_complex": _view_as_complex,
    "aten::view_as_real": _view_as_real,
}
