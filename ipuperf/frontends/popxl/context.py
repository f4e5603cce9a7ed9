"""Where new ops and tensors go: current graph, order, name scopes, IPU.

Thin front of :data:`ipuperf.ir.CONTEXT`; semantics in ``docs/reference/popxl.md`` 1.1 and 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, _GeneratorContextManager, contextmanager
from typing import Any, TypeVar, overload

from ipuperf.base.kinds import told
from ipuperf.frontends.options import POPXL as EFFECTS
from ipuperf.frontends.popart.locations import ExecutionContext
from ipuperf.ir import CONTEXT

from .arguments import checked_kinds, whole
from .bindings import BoundOp, OpSettings
from .builder import current_builder
from .graph import Graph
from .ir import Ir

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Context:
    """What new ops get from the ``with`` blocks around them, as upstream's functions ask for it; read only."""

    @property
    def graph(self) -> Graph:
        """The innermost active graph; RuntimeError when there is none."""
        return get_current_graph()

    @property
    def main_graph(self) -> Graph:
        """The main graph of its Ir."""
        return get_main_graph()

    @property
    def ipu_id(self) -> int | None:
        """The IPU of :func:`ipu` (0 without, None in ``ipu(None)``)."""
        return CONTEXT.ipus[-1] if CONTEXT.ipus else 0

    @property
    def io_tile_set(self) -> bool:
        """Whether new ops are on I/O tiles."""
        return bool(CONTEXT.tile_sets) and CONTEXT.tile_sets[-1] == "io"

    @property
    def name_scopes(self) -> list[str]:
        """The name scopes, outermost first."""
        return list(CONTEXT.scopes)

    @property
    def in_sequence(self) -> bool | str | None:
        """What the innermost :func:`in_sequence` says; None without."""
        return CONTEXT.modes[-1] if CONTEXT.modes else None

    def _get_op_settings(self, name: str) -> OpSettings:
        """The settings that a :class:`~ipuperf.frontends.popxl.bindings.Binding` takes."""
        return OpSettings(name)

    def _op_created(self, op: BoundOp) -> None:
        """Upstream calls a graph's hooks here; they are called where the op is made. TypeError for anything else."""
        if not isinstance(op, BoundOp):
            raise TypeError(f"_op_created({told(op)}): an op of createOpInGraph is needed")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"popxl's Context has no {name!r}: settings of PopART's native ops are not here")


def get_current_context() -> Context:
    """What is active now."""
    return Context()


def get_current_graph() -> Graph:
    """The innermost active graph; RuntimeError when there is none."""
    return Graph._from_ir(current_builder().graph)


def get_ir() -> Ir:
    """The Ir of the current graph."""
    return get_current_graph().ir


def get_main_graph() -> Graph:
    """The main graph of the current Ir."""
    return get_ir().main_graph


gcg = get_current_graph
gmg = get_main_graph
gir = get_ir


@overload
def in_sequence(enabled: FunctionT) -> FunctionT: ...


@overload
def in_sequence(enabled: bool | str = True) -> _GeneratorContextManager[None]: ...


def in_sequence(enabled: Any = True) -> Any:
    """Execute ops in the order they are written: ``True``, ``False`` (a block without order inside) or ``"pass"``.

    Works as context manager and as decorator, with or without parentheses.

    Raises:
        TypeError: another argument.
    """
    if callable(enabled):
        return CONTEXT.sequence(True)(enabled)
    if enabled is None:
        raise TypeError("`None` cannot be passed to in_sequence: allowed are True, False and 'pass'")
    if not isinstance(enabled, (bool, int, str)) or enabled not in (True, False, "pass"):
        raise TypeError(f"in_sequence({told(enabled)}): allowed are True, False and 'pass'")
    return CONTEXT.sequence("pass" if enabled == "pass" else bool(enabled))


@contextmanager
def debug_context_frame_offset(offset: int) -> Iterator[None]:
    """Upstream: how many frames further out the location of new ops is. Here a location is always that of the program's
    own line, so that an offset is without effect, which is said."""
    EFFECTS.given("context.debug_context_frame_offset(offset)", whole(offset, "debug_context_frame_offset"))
    yield


def op_debug_context(name: Any) -> Any:
    """Decorator of functions that make ops: these are said to be made by the function ``name`` (upstream); locations
    name the line of the program instead, so that the function stays as it is. A ``name`` is without effect, which is
    said; without one, upstream takes the function's own.

    Raises:
        TypeError: neither a function nor a name.
    """
    if callable(name):
        return name
    if not isinstance(name, str):
        raise TypeError(f"op_debug_context({name!r}): a function or a name is needed")
    EFFECTS.given("context.op_debug_context(name)", name)
    return lambda function: function


@contextmanager
def _execution_context(context: ExecutionContext) -> Iterator[None]:
    """New ops stand in this part of the program.

    Raises:
        NotImplementedError: any part but the normal one.
    """
    if context is not ExecutionContext.Normal:
        raise NotImplementedError(
            f"ops in {context}: programs here have one part, ExecutionContext.Normal; weights are copied from and to "
            "the host by Session without ops"
        )
    yield


@checked_kinds()
def name_scope(name: str) -> AbstractContextManager[None]:
    """Prefix the names of new tensors and ops with ``name/``."""
    return CONTEXT.scope(name)


def ipu(ipu: int | None = 0) -> AbstractContextManager[int | None]:
    """Place new ops on IPU ``ipu`` of the replica. None: nothing is said about them, so that ``ops.ipu_copy`` of their
    results needs its ``source``; they run on IPU 0."""
    return CONTEXT.on_ipu(None if ipu is None else whole(ipu, "popxl.ipu: the number of an IPU", 0))


def io_tiles() -> AbstractContextManager[None]:
    """Place new ops on the tiles set aside for input and output (``num_io_tiles`` of the Ir)."""
    return CONTEXT.on_tiles("io")
