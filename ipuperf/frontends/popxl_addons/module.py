"""``Module``: layers with state; ``create_graph`` gives a graph with named inputs and factories of its variables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.transforms.autodiff import GradGraphInfo
from ipuperf.runtime.replacing import replaced

from .custom_gradient import Aux, VarGrads, create_grad_graph, create_grad_graph_info
from .dot_tree import _Known, dotted
from .graph import BoundGraph, GraphWithNamedArgs
from .graph_cache import GraphCache
from .graph_common import CalledGradients
from .named_tensors import NamedTensors
from .utils import overrides
from .variable_factory import (
    DataSource,
    NamedVariableFactories,
    VariableFactory,
    add_replica_sharded_variable_input,
    add_variable_input,
)

#: Tensors of a graph, or a function of the graph that gives them; None: the default.
ChosenTensors = Iterable[popxl.Tensor] | Callable[[GraphWithNamedArgs], Iterable[popxl.Tensor]] | None


class Module(popxl.Module):
    """Base of layers and models: define ``build``, which adds variable inputs and ops to the current graph.

    Modules set as attributes (or as lists or tuples of modules) are children: calling one builds its ops inline, its
    variables appear under its name, and its tensors are in its name scope.

    Args:
        cache: True or a :class:`GraphCache`: make a graph only once for equal arguments of ``create_graph``.
        grad_inlining_error: what happens when a module that defines ``build_grad`` is called inline, where its ops are
            differentiated one by one: ``error``, ``warning`` or ``none``.

    Attributes:
        aux, var_grad: for ``build_grad``, see :mod:`.custom_gradient`.
        called_graphs_grad_info: gradients of graphs that ``build`` calls (:meth:`call_module`), used when the graph of
            this module is differentiated.

    Raises:
        ValueError: another ``grad_inlining_error``, or a cache for a module that defines ``build_grad``.
    """

    _name_scope: str | None = None
    _building = False
    _sub_modules: list[Module] | None = None
    grad_inlining_error: str = "error"

    @checked_arguments
    def __init__(
        self,
        cache: bool | GraphCache | None = False,
        grad_inlining_error: Literal["error", "warning", "none"] = "error",
    ) -> None:
        if grad_inlining_error not in ("error", "warning", "none"):
            raise ValueError(
                f"grad_inlining_error should be one of error, warning and none, not {grad_inlining_error!r}"
            )
        if cache and self.implements_grad_graph:
            raise ValueError(
                f"{type(self).__name__} cannot use graph caching: `build_grad` makes a gradient for each graph; "
                "cache=False is needed"
            )
        self.grad_inlining_error = grad_inlining_error
        self.aux, self.var_grad = Aux(), VarGrads()
        self.called_graphs_grad_info = CalledGradients()
        self._children: dict[str, Module] = {}
        self._variable_factories = NamedVariableFactories()
        self._named_inputs = NamedTensors()
        self._graph_cache: GraphCache | None = GraphCache() if cache is True else (cache or None)
        self._made: dict[popxl.Graph, tuple[NamedVariableFactories, NamedTensors]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if isinstance(value, Module):
            self._adopt(name, value)
        elif isinstance(value, (list, tuple)):
            for index, element in enumerate(value):
                if isinstance(element, Module):
                    self._adopt(f"{name}.{index}", element)

    @checked_arguments
    def set_name_scope(self, name: str) -> None:
        """Names of what :meth:`build` makes begin with ``name``; set where a module becomes an attribute of another."""
        self._name_scope = name

    def _adopt(self, name: str, child: Module) -> None:
        if "_children" not in self.__dict__:
            raise RuntimeError(f"{type(self).__name__}: call super().__init__() before setting {name!r} to a module")
        self._children[name] = child
        child.set_name_scope(name)
        self._link(name, child)

    def _link(self, name: str, child: Module) -> None:
        """Let the child's variables appear under its name here."""
        self._variable_factories.insert(name, child._variable_factories, overwrite=True)
        self._named_inputs.insert(name, child._named_inputs, overwrite=True)

    def _reset(self) -> None:
        """Forget the variables of the graph built last; children first in the new collections, in order of setting."""
        self._variable_factories = NamedVariableFactories()
        self._named_inputs = NamedTensors()
        self.called_graphs_grad_info = CalledGradients()
        self.aux, self.var_grad = Aux(), VarGrads()
        for name, child in self._children.items():
            child._reset()
            self._link(name, child)

    def _called_gradients(self) -> dict[popxl.Graph, GradGraphInfo]:
        """``called_graphs_grad_info`` with that of the children."""
        below = [child._called_gradients() for child in self._children.values()]
        return {graph: info for known in (*below, self.called_graphs_grad_info) for graph, info in known.items()}

    # -- building --------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What :meth:`build` returns for these arguments, inside the module's name scope if it has one."""
        if self.implements_grad_graph and not self._building:
            self._question_inlining()
        if self._name_scope is None:
            return self.build(*args, **kwargs)
        with popxl.name_scope(self._name_scope):
            return self.build(*args, **kwargs)

    def _question_inlining(self) -> None:
        """Error or warning, as asked for, where ``build_grad`` would not count."""
        message = (
            f"{type(self).__name__} is called inline, but its `build_grad` has been implemented and would not be used; "
            "call a graph of it (self.call_module), or give the module grad_inlining_error='none'"
        )
        if self.grad_inlining_error == "error":
            raise RuntimeError(message)
        if self.grad_inlining_error == "warning":
            warnings.warn(message, UserWarning, stacklevel=3)

    # -- gradients -------------------------------------------------------------------------------------------------

    @property
    def implements_grad_graph(self) -> bool:
        """Whether the module defines ``build_grad``."""
        return overrides(type(self), Module, "build_grad")

    def build_grad(self, *grads: Any) -> Any:
        """Build the gradients of the unnamed inputs from those of the outputs; optional (:mod:`.custom_gradient`)."""
        raise NotImplementedError(f"{type(self).__name__} does not define `build_grad`")

    @checked_arguments
    def create_grad_graph(
        self,
        fwd_graph: GraphWithNamedArgs,
        grads_provided: Iterable[popxl.Tensor] | None = None,
        grads_required: Iterable[popxl.Tensor] | None = None,
    ) -> GraphWithNamedArgs:
        """The gradient graph that ``build_grad`` builds for a graph of this module; see :mod:`.custom_gradient`."""
        return create_grad_graph(self, fwd_graph, grads_provided, grads_required)

    @checked_arguments
    def call_module(
        self,
        module: Module,
        name: str | None = None,
        autodiff: Literal["auto", "build_grad", "autodiff", "none"] = "auto",
        grads_provided: ChosenTensors = None,
        grads_required: ChosenTensors = None,
    ) -> Callable[..., tuple[popxl.Tensor, ...]]:
        """A function that makes a graph of ``module`` and calls it in the graph being built.

        Its variables appear under ``name`` (default: the class). Its gradient graph is made too where ``autodiff`` says
        so (``auto``: when the module defines ``build_grad``) and used when this module's graph is differentiated;
        ``grads_provided`` and ``grads_required`` are those of :func:`popxl_addons.autodiff`, or functions of the graph
        that is made which give them.
        """

        def call(*args: Any, **kwargs: Any) -> tuple[popxl.Tensor, ...]:
            factories, graph = module.create_graph(*args, **kwargs)
            variables = self.add_variable_inputs(name or type(module).__name__, factories)
            self.called_graphs_grad_info.update(graph.called_graphs_grad_info)
            # Differentiating adds outputs that only the gradient graph reads, and the caller gets none of them.
            outputs = len(graph.graph.outputs)
            if autodiff in ("build_grad", "autodiff") or (autodiff == "auto" and module.implements_grad_graph):
                provided, required = (
                    choice(graph) if callable(choice) else choice for choice in (grads_provided, grads_required)
                )
                self.called_graphs_grad_info.add(graph, graph.autodiff(provided, required, method=autodiff))
            return graph.bind(variables).call(*args, **kwargs)[:outputs]

        return call

    def create_graph(self, *args: Any, **kwargs: Any) -> tuple[NamedVariableFactories, GraphWithNamedArgs]:
        """A new subgraph of this module, and the factories of its variables.

        Args:
            args, kwargs: of ``build``: a tensor or :class:`popxl.TensorSpec` for each unnamed input.
        """
        if self._graph_cache is None:
            self._reset()
            with replaced(self, _building=True):  # its own graph: its ops are not inlined anywhere
                graph = popxl.gir().create_graph(self, *args, **kwargs)
            graph._base.own_gradient = self.implements_grad_graph
            factories, inputs = self._variable_factories.copy(), self._named_inputs.copy()
        else:
            self._reset()
            graph = self._graph_cache.create_graph(self, *args, **kwargs)
            # A graph from the cache is built once, so its names are those of its first use.
            if graph not in self._made:
                self._made[graph] = self._variable_factories.copy(), self._named_inputs.copy()
            made_factories, made_inputs = self._made[graph]
            factories, inputs = made_factories.copy(), made_inputs.copy()
        named = GraphWithNamedArgs(
            graph, inputs, from_module=self, aux=self.aux, called_graphs_grad_info=self._called_gradients()
        )
        # What was built belongs to the graph; the module starts empty for the next one.
        self._reset()
        return factories, named

    @checked_arguments
    def add_variable_input(
        self,
        name: str,
        data_iter: DataSource,
        dtype: popxl.dtype | None = None,
        by_ref: bool = False,
        replica_grouping: popxl.ReplicaGrouping | None = None,
        overwrite: bool = False,
    ) -> popxl.Tensor:
        """A named input of the graph being built, with a factory for its variable.

        Args:
            data_iter: a function that returns the data of a variable, or an iterable of data; see
                :class:`VariableFactory`.
            by_ref: the graph changes the variable.
            overwrite: replace an input of the same name; a dotted name may lead into names that are there.

        Raises:
            KeyError: the name is taken (also when the same module is called twice in one graph).
        """
        self._check_free(name, overwrite)
        tensor, factory = add_variable_input(name, data_iter, dtype, by_ref, replica_grouping)
        return self._add(name, tensor, factory, overwrite)

    @checked_arguments
    def add_variable_factory(self, variable_f: VariableFactory, name: str | None = None) -> popxl.Tensor:
        """A named input of the graph being built, for a factory that is there already.

        Args:
            name: in the collections (default: the factory's name).
        """
        self._check_free(name or variable_f.name)
        return self._add(name or variable_f.name, variable_f.create_input(), variable_f)

    @checked_arguments
    def add_replica_sharded_variable_input(
        self,
        name: str,
        data_iter: DataSource,
        dtype: popxl.dtype | None = None,
        by_ref: bool = False,
        replica_grouping: popxl.ReplicaGrouping | None = None,
        shard_over: int | popxl.ReplicaGrouping | None = None,
    ) -> popxl.Tensor:
        """As :meth:`add_variable_input` for a sharded variable: the data is whole, the input is the shard."""
        self._check_free(name)
        tensor, factory = add_replica_sharded_variable_input(
            name, data_iter, dtype, by_ref, replica_grouping, shard_over
        )
        return self._add(name, tensor, factory)

    def _check_free(self, name: str, overwrite: bool = False) -> None:
        """Errors of a name that is taken, before there is a graph input for it."""
        if not overwrite and name in self._variable_factories:
            raise _Known(
                f"{type(self).__name__}: variable {name!r} was added already; a module used several times in one "
                "graph needs one instance per use, or create_graph and a bound graph per use"
            )
        self._variable_factories._check_free(name, overwrite)

    def _add(self, name: str, tensor: popxl.Tensor, factory: VariableFactory, overwrite: bool = False) -> popxl.Tensor:
        self._variable_factories.insert(name, factory, overwrite)
        self._named_inputs.insert(name, tensor, overwrite)
        return tensor

    @checked_arguments
    def add_variable_inputs(
        self, name: str | int, variable_f: NamedVariableFactories, overwrite: bool = False
    ) -> NamedTensors:
        """Inputs for each of ``variable_f`` under ``name``, to bind to a shared graph.

        Args:
            name: a dotted name or a number.
            overwrite: replace inputs of the same name; a dotted name may lead into names that are there.
        """
        scope, inputs = dotted(name), {}
        self._variable_factories._check_free(scope, overwrite)
        for key, factory in variable_f.to_dict().items():
            prefix = ".".join([scope, *key.split(".")[:-1]])
            inputs[key] = factory.create_input(prefix)
        named = NamedTensors.from_dict(inputs)
        self._variable_factories.insert(name, variable_f.copy(), overwrite)
        self._named_inputs.insert(name, named, overwrite)
        return named.copy()

    @checked_arguments
    def add_input_tensors(self, name: str | int, factories: NamedVariableFactories) -> NamedTensors:
        """Older name of :meth:`add_variable_inputs`."""
        return self.add_variable_inputs(name, factories)

    # -- lists of modules ------------------------------------------------------------------------------------------

    @classmethod
    @checked_arguments
    def from_list(cls, sub_modules: Iterable[Module]) -> Module:
        """A module with the given ones as children 0, 1, ...: index it or go through it."""
        self = cls()
        members = list(sub_modules)
        for index, child in enumerate(members):
            setattr(self, str(index), child)
        # This goes past `__setattr__`, which would adopt the members a second time.
        object.__setattr__(self, "_sub_modules", members)
        return self

    @classmethod
    @checked_arguments
    def from_variable_factories(cls, inputs: Iterable[VariableFactory]) -> Module:
        """A module with inputs 0, 1, ... of the current graph, one for each factory: index it."""
        self = cls()
        for index, factory in enumerate(inputs):
            setattr(self, str(index), self.add_variable_factory(factory, str(index)))
        return self

    @checked_arguments
    def get(self, key: str | int) -> Any:
        """The attribute of this name; a number is the name of a member of a list. AttributeError when there is none."""
        return getattr(self, str(key))

    def __getitem__(self, item: str | int) -> Any:
        return self.get(item)

    def __iter__(self) -> Iterator[Module]:
        if self._sub_modules is None:
            raise AttributeError(f"{type(self).__name__} is no list of modules; only those of Module.from_list are")
        return iter(self._sub_modules)


__all__ = [
    "BoundGraph",
    "GraphCache",
    "GraphWithNamedArgs",
    "Module",
    "NamedTensors",
    "NamedVariableFactories",
    "VariableFactory",
    "add_replica_sharded_variable_input",
    "add_variable_input",
    "create_grad_graph_info",
]
