"""Older names of :mod:`.variable_factory`."""

from ipuperf.frontends.popart.offering import offered as _offered

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

__all__ = _offered(__name__)
