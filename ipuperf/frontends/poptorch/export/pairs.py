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

        error: Exception | None = None
        try:
            graph = graph_of(run, examples)
        except (AttributeError, TypeError, NotImplementedError) as failure:
            error = failure
        if error or any(_is_complex(n.meta.get("val")) for n in graph.nodes):
            raise UnsupportedError(
                f"{location_of_node(node)}: {name_of(node.target)} of complex numbers, which are pairs on the IPU, is "
                "unsupported; compute it with the real and the imaginary part"
            ) from error
        return graph, structure


def _with(arguments: Any, known: Any) -> Any:
    return pytree.tree_map_only(torch.fx.Node, known.__getitem__, arguments)


def _as_tensor(value: Any) -> Any:
    """An operand: a number of Python as a tensor without axes."""
    if isinstance(value, complex):
        return ComplexTensor(torch.full((), value.real), torch.full((), value.imag))
    return torch.full((), float(value)) if isinstance(value, (int, float)) else value


def _as_pair(value: Any) -> Any:
    """An operand as a complex tensor, also where it is real."""
    x = _as_tensor(value)
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x.float(), torch.zeros_like(x.float()))


# -- rules of our own --------------------------------------------------------------------------------------------------


def _converted(x: Any, *_: Any, **__: Any) -> torch.Tensor:
    """A conversion: single precision is all that there is, and what is real has no imaginary part."""
    return cast(torch.Tensor, _as_pair(x))


def _product(op: Any) -> Any:
    """An op that is linear in both operands: either may be real."""

    def rule(a: Any, b: Any, **named: Any) -> torch.Tensor:
        if not isinstance(b, ComplexTensor):
            return ComplexTensor(op(a.re, b, **named), op(a.im, b, **named))
        if not isinstance(a, ComplexTensor):
            return ComplexTensor(op(a, b.re, **named), op(a, b.im, **named))
        real = op(a.re, b.re, **named) - op(a.im, b.im, **named)
        return ComplexTensor(real, op(a.re, b.im, **named) + op(a.im, b.re, **named))

    return rule


def _convolution(op: Any) -> Any:
    def rule(x: Any, weight: Any, bias: Any = None, *others: Any) -> Any:
        z = _product(lambda a, b: op(a, b, None, *others))(x, weight)
        return z if bias is None else z + bias.reshape(-1, *[1] * (weight.dim() - 2))

    return rule


def _sum_of_product(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """``addmm``, ``baddbmm`` and the like."""
    return cast(torch.Tensor, _as_pair(c) * _as_pair(beta) + _product(torch.matmul)(a, b) * _as_pair(alpha))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = _product(torch.matmul)(x, weight.t())
    return product if bias is None else product + bias


def _moved(op: Any) -> Any:
    """An op that moves numbers, in either part by itself."""

    def rule(*operands: Any, **named: Any) -> Any:
        parts = [pytree.tree_map_only(ComplexTensor, operator.attrgetter(p), operands) for p in ("re", "im")]
        (reals, structure), (imaginaries, _) = (pytree.tree_flatten(op(*part, **named)) for part in parts)
        return pytree.tree_unflatten([ComplexTensor(*pair) for pair in zip(reals, imaginaries, strict=True)], structure)

    return rule


def _pad(z: Any, amounts: Sequence[int], mode: str = "constant", number: float | None = None) -> Any:
    if mode == "constant":
        return torch.constant_pad_nd(z, amounts, number or 0)
    return _moved(torch.ops.aten.pad)(z, amounts, mode)


def _where(mask: torch.Tensor, x: Any, y: Any) -> Any:
    return _moved(torch.where)(mask, _as_pair(x), _as_pair(y))


def _scatter(z: Any, dim: int, index: torch.Tensor, source: Any) -> Any:
    values = source if isinstance(source, ComplexTensor) else _as_pair(source).expand(index.shape)
    return _moved(torch.ops.aten.scatter)(z, dim, index, values)


def _made(op: Any) -> Any:
    """A tensor of numbers that are known; one number is the last operand."""

    def rule(*operands: Any, dtype: Any = None, **named: Any) -> torch.Tensor:
        like = [x.re if isinstance(x, ComplexTensor) else x for x in operands]
        if "full" not in op.__name__:
            real = op(*like, dtype=torch.float32, **named)
            return ComplexTensor(real, torch.zeros_like(real))
        number = complex(like.pop())
        return ComplexTensor(*(op(*like, part, dtype=torch.float32, **named) for part in (number.real, number.imag)))

    return rule


def _reversed_difference(a: Any, b: Any, alpha: Any = 1) -> torch.Tensor:
    return cast(torch.Tensor, _as_pair(b) - _as_pair(a) * _as_pair(alpha))


def _power(base: Any, exponent: Any) -> Any:
    """A whole power is products, as exact as these; any other is ``exp(exponent * log(base))``."""
    number = exponent if isinstance(exponent, (int, float)) else math.nan
    if number == 0.5:
        return torch.sqrt(base)
    if not float(number).is_integer():
        return torch.exp(_as_pair(exponent) * torch.log(_as_pair(base)))
    if number == 0:
        return _as_pair(torch.ones_like(base.re))
    result = base
    for digit in bin(abs(int(number)))[3:]:
        result = result * result * base if digit == "1" else result * result
    return result if number > 0 else torch.reciprocal(result)


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


def _each(names: str, rule_of: Any) -> dict[str, Any]:
    """One rule for these ops."""
    return {f"aten::{name}": rule_of(getattr(torch.ops.aten, name)) for name in names.split()}


_OWN = {
    **_each("mul mm bmm mv dot matmul", _product),
    **_each("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d", _convolution),
    **_each("roll tril triu unfold unbind index_put index_copy take", _moved),
    **_each("empty eye full ones zeros empty_like full_like ones_like zeros_like", _made),
    **_each("new_empty new_full new_ones new_zeros", _made),
    "aten::_assert_tensor_metadata": lambda *_, **__: None,
    "aten::_fft_c2c": _of_complex,
    "aten::_fft_c2r": _to_real,
    "aten::_fft_r2c": _of_real,
    "aten::_to_copy": _converted,
    "aten::abs": _abs,
    "aten::addmm": _sum_of_product,
    "aten::baddbmm": _sum_of_product,
    "aten::complex": ComplexTensor,
    "aten::linear": _linear,
    "aten::pad": _pad,
    "aten::polar": _polar,
    "aten::pow": _power,
    "aten::rsub": _reversed_difference,
    "aten::scatter": _scatter,
    "aten::square": lambda z: z * z,
    "aten::type_as": _converted,
    "aten::view_as_complex": _view_as_complex,
    "aten::view_as_real": _view_as_real,
    "aten::where": _where,
}
