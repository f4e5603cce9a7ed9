"""Older names of :mod:`.variable_factory`."""

from .variable_factory import (
    NamedVariableFactories,
    VariableFactory,
    add_replica_sharded_variable_input,
    add_variable_input,
)

InputFactory = VariableFactory
NamedInputFactories = NamedVariableFactories
add_input_tensor = add_variable_input
add_replica_sharded_input_tensor = add_replica_sharded_variable_input

__all__ = ["InputFactory", "NamedInputFactories", "NamedVariableFactories", "VariableFactory", "add_input_tensor"]
__all__ += ["add_replica_sharded_input_tensor", "add_replica_sharded_variable_input", "add_variable_input"]
