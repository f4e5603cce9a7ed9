"""Programs compiled ahead."""

from ....refusals import refused

_INSTEAD = "a program is compiled when it runs; there are no executables to save"
experimental_application_compile_op = refused("application_compile_op.experimental_application_compile_op", _INSTEAD)

__all__ = ["experimental_application_compile_op"]
