"""``Module``: layers with state; ``create_graph`` gives a graph with named inputs and factories of its variables."""

from __future__ import annotations

from typing import Any

from ipuperf import popxl

from .graph import BoundGraph, GraphWithNamedArgs
from .graph_cache import GraphCache
from .named_tensors import NamedTensors
from .variable_factory import (
    DataSource,
    NamedVariableFactories,
    VariableFactory,
    add_replica_sharded_variable_input,
    add_variable_input,
)


class Module(popxl.Module):
    """Base of layers and models: define ``build``, which adds variable inputs and ops to the current graph.

    Modules set as attributes (or as lists or tuples of modules) are children: calling one builds its ops inline, its
    variables appear under its name, and its tensors are in its name scope.

    Args:
        cache: True or a :class:`GraphCache`: make a graph only once for equal arguments of ``create_graph``.
    """

    def __init__(self, cache: bool | GraphCache | None = False) -> None:
        self._children: dict[str, Module] = {}
        self._variable_factories = NamedVariableFactories()
        self._named_inputs = NamedTensors()
        self._name_scope: str | None = None
        self._graph_cache: GraphCache | None = GraphCache() if cache is True else (cache or None)
        self._made: dict[popxl.Graph, tuple[NamedVariableFactories, NamedTensors]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if isinstance(value, Module):
            self._adopt(name, value)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, Module):
                    self._adopt(f"{name}.{index}", item)

    def _adopt(self, name: str, child: Module) -> None:
        if "_children" not in self.__dict__:
            raise RuntimeError(f"{type(self).__name__}: call super().__init__() before setting {name!r} to a module")
        self._children[name] = child
        child._name_scope = name
        self._link(name, child)

    def _link(self, name: str, child: Module) -> None:
        """Let the child's variables appear under its name here."""
        self._variable_factories.insert(name, child._variable_factories, overwrite=True)
        self._named_inputs.insert(name, child._named_inputs, overwrite=True)

    def _reset(self) -> None:
        """Forget the variables of the graph built last; children first in the new collections, in order of setting."""
        self._variable_factories = NamedVariableFactories()
        self._named_inputs = NamedTensors()
        for name, child in self._children.items():
            child._reset()
            self._link(name, child)

    # -- building --------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What :meth:`build` returns for these arguments, inside the module's name scope if it has one."""
        if self._name_scope is None:
            return self.build(*args, **kwargs)
        with popxl.name_scope(self._name_scope):
            return self.build(*args, **kwargs)

    def create_graph(self, *args: Any, **kwargs: Any) -> tuple[NamedVariableFactories, GraphWithNamedArgs]:
        """A new subgraph of this module, and the factories of its variables.

        Args:
            args, kwargs: of ``build``: a tensor or :class:`popxl.TensorSpec` for each unnamed input.
        """
        if self._graph_cache is None:
            self._reset()
            graph = popxl.gir().create_graph(self, *args, **kwargs)
            factories, inputs = self._variable_factories.copy(), self._named_inputs.copy()
        else:
            self._reset()
            graph = self._graph_cache.create_graph(self, *args, **kwargs)
            if graph not in self._made:
                self._made[graph] = self._variable_factories.copy(), self._named_inputs.copy()
            factories, inputs = (tree.copy() for tree in self._made[graph])  # type: ignore[assignment]
        self._reset()
        return factories, GraphWithNamedArgs(graph, inputs)

    def add_variable_input(
        self,
        name: str,
        data_iter: DataSource,
        dtype: popxl.dtype | None = None,
        by_ref: bool = False,
        replica_grouping: popxl.ReplicaGrouping | None = None,
    ) -> popxl.Tensor:
        """A named input of the graph being built, with a factory for its variable.

        Args:
            data_iter: initial data, a function that returns it, or an iterable.
            by_ref: the graph changes the variable.

        Raises:
            KeyError: the name is taken (also when the same module is called twice in one graph).
        """
        tensor, factory = add_variable_input(name, data_iter, dtype, by_ref, replica_grouping)
        return self._add(name, tensor, factory)

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
        tensor, factory = add_replica_sharded_variable_input(
            name, data_iter, dtype, by_ref, replica_grouping, shard_over
        )
        return self._add(name, tensor, factory)

    def _add(self, name: str, tensor: popxl.Tensor, factory: VariableFactory) -> popxl.Tensor:
        if self._variable_factories.get(name):
            raise KeyError(
                f"{type(self).__name__}: variable {name!r} was added already; a module used several times in one "
                "graph needs one instance per use, or create_graph and a bound graph per use"
            )
        self._variable_factories.insert(name, factory)
        self._named_inputs.insert(name, tensor)
        return tensor

    def add_variable_inputs(
        self, name: str, factories: NamedVariableFactories, overwrite: bool = False
    ) -> NamedTensors:
        """Inputs for each of ``factories`` under ``name``, to bind to a shared graph."""
        inputs = NamedTensors()
        for key, factory in factories.to_dict().items():
            prefix = ".".join([name, *key.split(".")[:-1]])
            inputs.insert(key, factory.create_input(prefix))
        self._variable_factories.insert(name, factories.copy(), overwrite)
        self._named_inputs.insert(name, inputs, overwrite)
        return inputs.copy()

    def add_input_tensors(self, name: str, factories: NamedVariableFactories) -> NamedTensors:
        """Older name of :meth:`add_variable_inputs`."""
        return self.add_variable_inputs(name, factories)


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
]
