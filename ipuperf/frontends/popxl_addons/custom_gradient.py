"""Gradients that a module defines itself: ``Module.build_grad``, with ``aux`` and ``var_grad``.

``build_grad`` gets the gradients of the outputs, takes forward values from ``self.aux`` (put there by ``build``) and
gives the gradients of the unnamed inputs; those of variables it puts into ``self.var_grad`` by name. Semantics of
popxl-addons: popxl_addons/module.py, ``create_grad_graph``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipuperf import ir as _ir
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.placement import place_gradients
from ipuperf.frontends.popxl.transforms.autodiff import GradGraphInfo

from .graph import GraphWithNamedArgs
from .utils import duplicate_items

if TYPE_CHECKING:
    from .module import Module


class Aux:
    """Forward values, or anything else, that ``build`` leaves for ``build_grad``, by name.

    Inside ``build_grad`` a tensor of the forward graph comes back as an input of the gradient graph.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})
        self._inputs: dict[str, popxl.Tensor] | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value

    def __getitem__(self, key: str) -> Any:
        if self._inputs is None:
            raise RuntimeError(
                f"aux[{key!r}]: you can only get items within the `build_graph` method, that is in the `build_grad` "
                "that autodiff runs"
            )
        value = self._values[key]
        if not isinstance(value, popxl.Tensor):
            return value
        if key not in self._inputs:
            self._inputs[key] = popxl.graph_input(**value.spec, name=key)
        return self._inputs[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def copy(self) -> Aux:
        """The same values, with no gradient graph."""
        return Aux(self._values)

    @property
    def tensors(self) -> list[popxl.Tensor]:
        """The forward tensors, each once."""
        return list(dict.fromkeys(v for v in self._values.values() if isinstance(v, popxl.Tensor)))

    @property
    def used(self) -> list[popxl.Tensor]:
        """The forward tensor behind each input of the gradient graph, in order of the inputs."""
        return [self._values[key] for key in self._inputs or ()]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Values can be had: a gradient graph is being built."""
        self._inputs = {}
        yield


class VarGrads:
    """Gradients of variables by name, filled by ``build_grad``.

    Args:
        variables: the graph's variable inputs by name; None outside of ``build_grad``.
    """

    def __init__(self, variables: Mapping[str, popxl.Tensor] | None = None) -> None:
        self._variables = variables
        self._grads: dict[str, popxl.Tensor] = {}

    def _open(self, key: str) -> Mapping[str, popxl.Tensor]:
        if self._variables is None:
            raise RuntimeError(
                f"var_grad[{key!r}] can only be used within the `build_graph` method, that is in the `build_grad` that "
                "autodiff runs"
            )
        return self._variables

    def __getitem__(self, key: str) -> popxl.Tensor:
        self._open(key)
        return self._grads[key]

    def __setitem__(self, key: str, tensor: popxl.Tensor) -> None:
        variables = self._open(key)
        if not isinstance(tensor, popxl.Tensor):
            raise TypeError(f"var_grad[{key!r}] = {tensor!r}: Not a tensor")
        if key not in variables:
            raise KeyError(f"var_grad[{key!r}]: Not a variable of the graph; there are {list(variables)}")
        _same_shape(tensor, variables[key], f"var_grad[{key!r}] and its variable differ")
        self._grads[key] = tensor

    def __contains__(self, key: object) -> bool:
        return key in self._grads


def _same_shape(grad: popxl.Tensor, tensor: popxl.Tensor, mismatch: str) -> None:
    if (grad.shape, grad.meta_shape) != (tensor.shape, tensor.meta_shape):
        raise ValueError(
            f"{mismatch}: gradient {grad.id!r} has shape {grad.shape} and meta_shape {grad.meta_shape}, "
            f"{tensor.id!r} has {tensor.shape} and {tensor.meta_shape}"
        )


def create_grad_graph(
    module: Module,
    forward: GraphWithNamedArgs,
    grads_provided: Iterable[popxl.Tensor] | None = None,
    grads_required: Iterable[popxl.Tensor] | None = None,
) -> GraphWithNamedArgs:
    """The gradient graph of ``forward`` that the module's ``build_grad`` builds.

    Tensors in ``aux`` become outputs of the forward graph and of its calls. Outputs: the gradients that ``build_grad``
    returns, then those of variables, in the order of ``grads_required``.

    Raises:
        TypeError: ``build_grad`` takes other than positional parameters; ValueError: tensors that are no outputs or
            inputs of the graph, or gradients missing, too many, or of another shape.
    """
    _check_signature(module.build_grad)
    graph, names = forward.graph, {t: name for name, t in forward.args.to_dict().items()}
    provided = _chosen(grads_provided, graph.outputs, "grads_provided", graph)
    required = _chosen(grads_required, graph.inputs, "grads_required", graph)
    # The graph keeps the values of its own build; the module may have built others since.
    module.aux = Aux() if forward._aux is None else forward._aux.copy()
    module.var_grad = VarGrads(forward.args.to_dict())
    try:
        with module.aux.open():
            grad_graph = popxl.gir().create_graph(module.build_grad, *provided)
        plain = [t for t in required if t not in names]
        _check_outputs(grad_graph, plain)
        needed = [t for t in required if t in names]
        _add_variable_grads(grad_graph, [names[t] for t in needed], module.var_grad)
        _ir.expose(graph._base, [t._ir_tensor for t in module.aux.tensors])
        inputs = [(t, True) for t in provided] + [(t, False) for t in module.aux.used]
        derivative = _ir.Derivative(
            graph._base,
            grad_graph._base,
            [_ir.Connection(t._ir_tensor, is_gradient) for t, is_gradient in inputs],
            [_ir.Connection(t._ir_tensor, True) for t in (*plain, *needed)],
        )
    finally:
        module._reset()
    place_gradients(derivative)
    return GraphWithNamedArgs.from_grad_graph(GradGraphInfo(derivative))


@checked_arguments
def create_grad_graph_info(
    ir: popxl.Ir,
    fwd_graph: popxl.Graph,
    grad_graph: popxl.Graph,
    grad_input_to_fwd_output: Mapping[popxl.Tensor, popxl.Tensor],
    grad_output_to_fwd_input: Mapping[popxl.Tensor, popxl.Tensor],
    fwd_tensors: Collection[popxl.Tensor],
) -> GradGraphInfo:
    """How a gradient graph that the program has built belongs to its forward graph.

    Args:
        ir: the program of both graphs.
        grad_input_to_fwd_output: input of the gradient graph, in order -> the forward tensor it stands for.
        grad_output_to_fwd_input: output of the gradient graph, in order -> the forward input whose gradient it is.
        fwd_tensors: those of the first mapping's forward tensors whose values the inputs are; inputs for the others are
            their gradients.

    Raises:
        ValueError: a graph of another program.
    """
    for graph in (fwd_graph, grad_graph):
        if graph.ir != ir:
            raise ValueError(f"create_grad_graph_info: graph {graph.name!r} belongs to another Ir")
    inputs = [_ir.Connection(t._ir_tensor, t not in fwd_tensors) for t in grad_input_to_fwd_output.values()]
    outputs = [_ir.Connection(t._ir_tensor, True) for t in grad_output_to_fwd_input.values()]
    return GradGraphInfo(_ir.Derivative(fwd_graph._base, grad_graph._base, inputs, outputs))


def _check_signature(build_grad: Callable[..., Any]) -> None:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wrong = [name for name, p in inspect.signature(build_grad).parameters.items() if p.kind not in positional]
    if wrong:
        raise TypeError(
            f"`build_grad` takes each input by its position; these parameters are of another kind: {', '.join(wrong)}"
        )


def _chosen(
    tensors: Iterable[popxl.Tensor] | None, among: tuple[popxl.Tensor, ...], role: str, graph: popxl.Graph
) -> list[popxl.Tensor]:
    """``tensors``, checked to be ``among`` and different; all when nothing is given."""
    chosen = list(among if tensors is None else tensors)
    wrong = [t for t in chosen if t not in among]
    if wrong:
        raise ValueError(f"{role}: {wrong} do not belong to {graph.name!r}; allowed: {[t.id for t in among]}")
    if twice := duplicate_items(chosen):
        raise ValueError(f"{role} names a tensor twice: {twice}")
    return chosen


def _check_outputs(grad_graph: popxl.Graph, required: list[popxl.Tensor]) -> None:
    """One output per required gradient that is not a variable's, of its shape."""
    count, names = len(grad_graph.outputs), [t.id for t in required]
    if count > len(required):
        raise ValueError(
            f"Too many outputs in the grad graph {grad_graph.name!r}: {count} gradients for {names}; "
            "`grads_required` says which there are to be"
        )
    if count < len(required):
        raise ValueError(
            f"{grad_graph.name!r} has too few outputs: {count} gradients for {names}; `grads_required` says which "
            "there are to be"
        )
    for place, (grad, tensor) in enumerate(zip(grad_graph.outputs, required, strict=True)):
        mismatch = f"output Tensor at position {place} of {grad_graph.name!r}"
        _same_shape(grad, tensor, mismatch)


def _add_variable_grads(grad_graph: popxl.Graph, names: list[str], grads: VarGrads) -> None:
    missing = [name for name in names if name not in grads]
    if missing:
        raise ValueError(
            f"Not all variable gradients have been specified in var_grad of {grad_graph.name!r}: {missing} have none; "
            "`grads_required` says which there are to be"
        )
    with grad_graph:
        for name in names:
            popxl.graph_output(grads[name])
