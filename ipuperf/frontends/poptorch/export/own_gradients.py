"""Custom ``torch.autograd.Function``s: the gradient of a function is what its own ``backward`` computes.

A trace runs ``forward`` and marks its results. After the trace ``backward`` is traced as well, with what ``forward``
has saved. Where a program is differentiated, those ops take the place of the gradients of ``forward``'s.
"""

from __future__ import annotations

import copy
import hashlib
import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
import torch
import torch.utils._pytree as pytree

from ipuperf.functions import make_all
from ipuperf.ir import CONTEXT, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, INTEGER, Attribute
from ipuperf.ops.base import Gradients
from ipuperf.ops.custom import CustomOp
from ipuperf.ops.work import Copy, Work

from ..aten.lowering import ExportError, Lowering, Value, ir_dtype
from ..aten.table import RANDOM, handler_of, name_of
from ..errors import UnsupportedError
from .inlining import graph_of
from .lines import calling_line, unsupported_at

#: The ops of each ``backward``, by the digest that programs know it by.
_BACKWARD: dict[str, torch.fx.Graph] = {}
MARK = "ipuperf::own_gradient"


@torch.library.custom_op(MARK, mutates_args=())
def own_gradient(
    results: list[torch.Tensor], operands: list[torch.Tensor], saved: list[torch.Tensor], key: str
) -> list[torch.Tensor]:
    """``results``, whose gradients become those of ``operands`` by the ops that ``key`` names, which read ``saved``."""
    return [result.clone() for result in results]


@own_gradient.register_fake
def _(
    results: list[torch.Tensor], operands: list[torch.Tensor], saved: list[torch.Tensor], key: str
) -> list[torch.Tensor]:
    return [torch.empty_like(result) for result in results]


class _Context:
    """The first argument of ``forward`` and ``backward``."""

    def __init__(self, needed: tuple[bool, ...]) -> None:
        self.needs_input_grad = needed
        self.saved_tensors: tuple[Any, ...] = ()
        self._constant: list[Any] = []
        self._materialized = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """For forward-mode derivatives, which no program has."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._constant += tensors

    def set_materialize_grads(self, value: bool) -> None:
        self._materialized = value

    def mark_dirty(self, *_: Any) -> NoReturn:
        raise UnsupportedError(
            "ctx.mark_dirty is unsupported: a custom autograd function cannot change its operands in place; return the "
            "new value"
        )


@dataclass
class _Call:
    """One call of a custom function: what its ``backward`` needs to be traced."""

    function: Any
    context: _Context
    marked: Sequence[bool]
    results: Sequence[torch.Tensor]
    taken: Sequence[int]
    at: str

    def backward(self) -> torch.fx.Graph:
        """The gradients of the operands (``taken`` of the arguments) by those of the results and what was saved."""
        leaves, structure = pytree.tree_flatten(vars(self.context))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        results = [result for result, marked in zip(self.results, self.marked, strict=True) if marked]

        def run(*parts: torch.Tensor) -> list[torch.Tensor | None]:
            arriving, filled = iter(parts[: len(results)]), list(leaves)
            for place, value in zip(places, parts[len(results) :], strict=True):
                filled[place] = value
            context = copy.copy(self.context)
            vars(context).update(pytree.tree_unflatten(filled, structure))
            grads = [next(arriving) if marked else torch.zeros_like(r) for r, marked in zip(self.results, self.marked)]
            leaf_grads = self.function.backward(context, *grads)
            leaf_grads = leaf_grads if isinstance(leaf_grads, (tuple, list)) else (leaf_grads,)
            return [leaf_grads[place] for place in self.taken]

        try:
            graph = graph_of(run, [*results, *(leaves[place] for place in places)])
        except (ExportError, UnsupportedError):
            raise
        except Exception as error:
            # What PyTorch or the user raises; a reversible layer runs its modules and their backward again, for one.
            raise UnsupportedError(
                f"{self.at}: backward of custom autograd function {self.function.__name__!r} cannot be traced "
                f"({type(error).__name__}: {error}); compute it from what ctx holds, by functions of PyTorch alone"
            ) from error
        if graph.find_nodes(op="get_attr"):
            raise UnsupportedError(
                f"{self.at}: backward of custom autograd function {self.function.__name__!r} reads a tensor that "
                "forward has not saved; use ctx.save_for_backward (a hook has the gradient alone)"
            )
        return graph


class Functions:
    """The calls of custom functions in one trace."""

    def __init__(self, training: bool) -> None:
        self.training, self.calls, self.hooks = training, list[_Call](), set[str]()
        self.hooked: dict[int, tuple[torch.Tensor, int, OrderedDict[int, Callable[..., Any]]]] = {}

    def apply(self, function: Any, at: str, args: Sequence[Any], kwargs: Any) -> Any:
        """What ``function.apply(*args)`` gives."""
        tensors = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor)]
        taken = [place for place in tensors if args[place].is_floating_point() and args[place].requires_grad]
        context = _Context(tuple(place in taken for place in range(len(args))))
        with unsupported_at(at):
            if function.setup_context is torch.autograd.Function.setup_context:
                output = function.forward(context, *args, **kwargs)
            else:
                output = function.forward(*args, **kwargs)
                function.setup_context(context, tuple(args), output)
        if not self.training or not taken:
            return output
        results = [output] if isinstance(output, torch.Tensor) else list(output)
        marked = [
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and not any(value is constant for constant in context._constant)
            for value in results
        ]
        saved = [leaf for leaf in pytree.tree_leaves(vars(context)) if isinstance(leaf, torch.Tensor)]
        chosen = [value for value, mark in zip(results, marked, strict=True) if mark]
        made = iter(torch.ops.ipuperf.own_gradient(chosen, [args[n] for n in taken], saved, str(len(self.calls))))
        self.calls.append(_Call(function, context, marked, results, taken, at))
        results = [next(made) if mark else value for value, mark in zip(results, marked, strict=True)]
        return results[0] if isinstance(output, torch.Tensor) else type(output)(results)

    def hook(self, tensor: torch.Tensor, hook: Callable[..., Any]) -> torch.utils.hooks.RemovableHandle:
        """``tensor.register_hook(hook)``: what is computed of ``tensor`` from now on has this gradient.

        Raises:
            UnsupportedError: a hook of an input or a parameter, or (later) one that gives nothing, or that comes after
                what ``tensor`` was used for.
        """
        known, version, hooks = self.hooked.get(id(tensor), (None, -1, OrderedDict[int, Callable[..., Any]]()))
        again = known is tensor and version == tensor._version
        at, hooks = calling_line(), hooks if again else OrderedDict()
        handle = torch.utils.hooks.RemovableHandle(hooks)
        hooks[handle.id] = hook
        if again:  # in turn, with those that are there
            return handle

        class Hook(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                for function in hooks.values():
                    grad = function(grad)
                    if grad is None:
                        raise UnsupportedError(
                            f"{at}: a hook that gives no gradient is unsupported: Python would not be called on the IPU"
                        )
                return grad

        if tensor.is_leaf:
            raise UnsupportedError(
                f"{at}: Tensor.register_hook of an input or a parameter is unsupported; multiply it by 1 and hook that"
            )
        self.hooks.add(str(len(self.calls)))
        tensor.copy_(self.apply(Hook, at, [tensor], {}))
        self.hooked[id(tensor)] = tensor, tensor._version, hooks
        return handle

    def named(self, program: torch.export.ExportedProgram) -> None:
        """Let the marks of a program say the digests of their gradients' ops."""
        regions = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
        for region in regions:
            for node in region.graph.find_nodes(op="call_function", target=torch.ops.ipuperf.own_gradient.default):
                number = cast(str, node.args[3])
                call = self.calls[int(number)]
                if number in self.hooks and any(user < node for user in node.args[0][0].users):
                    raise UnsupportedError(f"{call.at}: Tensor.register_hook: register it before the tensor is used")
                graph = call.backward()
                text = str([(n.op, str(n.target), n.args, n.kwargs, n.meta.get("val")) for n in graph.nodes])
                key = hashlib.sha256(text.encode()).hexdigest()
                _BACKWARD[key] = graph
                node.update_arg(3, key)


class OwnGradient(CustomOp):
    """``result_count`` results, ``operand_count`` operands, then others: the results are given on, and their gradients
    become those of the operands by ``backward(builder, grads, others)``."""

    result_count = Attribute(INTEGER)
    operand_count = Attribute(INTEGER)
    backward: Any = Attribute(ANYTHING)

    def infer(self) -> list[TensorSpec]:
        """The specs of the results."""
        return [TensorSpec(tensor.shape, tensor.dtype) for tensor in self.inputs[: self.result_count]]

    def value(self, *operands: np.ndarray) -> list[np.ndarray]:
        """The results."""
        return list(operands[: self.result_count])

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """Those of the operands."""
        others = self.inputs[self.result_count + self.operand_count :]
        operand_grads = self.backward(builder, list(zip(self.outputs, grads, strict=True)), others)
        return [*[None] * self.result_count, *operand_grads, *[None] * len(others)]

    def work(self) -> Sequence[Work]:
        """A copy of each result, as that of AutogradProxy."""
        return [Copy(tensor.spec.bytes) for tensor in self.outputs]


def lowered(
    low: Lowering, results: Sequence[Value], operands: Sequence[Value], saved: Sequence[Value], key: str
) -> list[Tensor]:
    """The mark in a program."""
    first, second, third = ([low.tensor(value) for value in values] for values in (results, operands, saved))
    if key not in _BACKWARD:
        raise low.unsupported("the gradient of a custom autograd function stands in no file; compile the model anew")
    location, module = low.location, low.module

    def backward(builder: GradientBuilder, grads: Sequence[tuple[Tensor, Tensor | None]], others: Any) -> Gradients:
        inner = Lowering(
            builder.graph, training=True, seed=lambda: _refuse(location), next_key=lambda: _refuse(location)
        )
        inner.location, inner.module = location, module
        with CONTEXT.building(inner):
            operands = [
                inner.constant(np.zeros(tensor.shape), tensor.dtype) if grad is None else grad for tensor, grad in grads
            ]
            return _written(inner, _BACKWARD[key], [*operands, *(builder.forward(tensor) for tensor in others)])

    names = [f"{low.naming}_{number}" for number in range(len(first))]
    attributes = {"result_count": len(first), "operand_count": len(second), "backward": backward}
    return make_all(OwnGradient, [*first, *second, *third], names, **attributes)


def _refuse(location: str | None) -> NoReturn:
    raise UnsupportedError(f"{location}: random numbers in the backward of a custom autograd function are unsupported")


def _written(low: Lowering, graph: torch.fx.Graph, operands: Sequence[Tensor]) -> list[Tensor | None]:
    """The results of ``graph``, whose ops are written where ``low`` writes."""
    waiting, values = iter(operands), dict[torch.fx.Node, Any]()
    for node in graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            values[node] = next(waiting)
        elif node.op == "output":
            return [None if value is None else low.tensor(value) for value in args[0]]
        elif node.target is operator.getitem:
            values[node] = args[0][args[1]]
        elif name_of(node.target).split("::")[-1] not in RANDOM and all(
            isinstance(values[n], torch.Tensor) for n in node.all_input_nodes
        ):
            values[node] = cast(Callable[..., Any], node.target)(*args, **kwargs)
        else:
            low.naming, low.target = node.name, name_of(node.target)
            results = [t for t in pytree.tree_leaves(node.meta["val"]) if isinstance(t, torch.Tensor)]
            low.shapes = [tuple(t.shape) for t in results]
            low.dtypes = [ir_dtype(t.dtype, low.target) for t in results]
            handler = handler_of(node.target)
            if handler is None:
                raise low.unsupported("unsupported in the backward of a custom autograd function")
            values[node] = handler(low, *args, **kwargs)
    raise AssertionError("a graph without results")
