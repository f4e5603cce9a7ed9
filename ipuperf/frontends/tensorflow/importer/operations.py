"""From TensorFlow's op types to ops of the IR: one table, made of the tables of the families."""

from importlib import import_module

from .table import Operations

#: The families, in the order of the generated table: each is the ``FAMILY`` of a module of the folder ``ops``.
FAMILIES = """
    program elementwise products einsum convolutions windows crops networks reductions shapes slices selection random
    updates control loops lists
""".split()

OPERATIONS = Operations([import_module(f".ops.{name}", __package__).FAMILY for name in FAMILIES])
