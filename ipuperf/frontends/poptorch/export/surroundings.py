"""How PyTorch is while a module is exported.

Within ``forward`` tensors say that they are on an IPU, as upstream's do, though an export runs with stand-ins on the
host; libraries choose ops of fixed shapes by it (``x.device.type == \"ipu\"``), and make tensors where others are.
PyTorch's own Python code is told the truth.

Graphs have no code. PyTorch writes and compiles Python code for each graph at each change, an eighth of the time of an
export. An export only walks through its graphs. Code is written where a graph is called all the same.
"""

from __future__ import annotations

import inspect
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from functools import cached_property
from types import FrameType, MethodType
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import graph_module
from torch.fx.graph import PythonCode
from torch.nn.modules._functions import BackwardHookFunction, CrossMapLRN2d

from ipuperf.runtime.replacing import replaced

from ..errors import UnsupportedError
from .lines import location_of

IPU = torch.device("ipu", 0)
#: What a tensor says of itself, by attribute or method.
_SHOWN = {"device": IPU, "get_device": IPU.index, "is_cpu": False, "is_ipu": True}
_TOLD_THE_TRUTH = ("torch", "ipuperf")


def attribute_of(func: Any) -> str:
    """The name of the attribute that a call of PyTorch reads, or of the function itself."""
    name = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name


def read(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``func``, which only reads what a tensor is."""
    name = attribute_of(func)
    return _SHOWN[name] if name in _SHOWN and _is_of_the_program() else func(*args, **kwargs)


def _is_of_the_program() -> bool:
    """Whether the code that reads what the caller of this function answers is neither PyTorch's nor ours."""
    reader: FrameType | None = sys._getframe(2)
    while reader is not None and reader.f_code.co_name == "__torch_function__":
        reader = reader.f_back
    name = "" if reader is None else str(reader.f_globals.get("__name__", ""))
    return name.partition(".")[0] not in _TOLD_THE_TRUTH


def arguments_on(home: torch.device, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call with ``home``, where the stand-ins are, for the IPU."""
    if _is_ipu(kwargs.get("device")):
        kwargs = {**kwargs, "device": home}
    if any(isinstance(value, torch.device) for value in args) or func is torch.Tensor.to:
        args = tuple(home if _is_ipu(value) else value for value in args)
    return args, kwargs


def _is_ipu(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).partition(":")[0] == IPU.type


@contextmanager
def on_ipus(home: torch.device) -> Iterator[None]:
    """Within the block the stand-ins, which are on ``home``, say that they are on an IPU, and ``torch.autocast`` of the
    IPU casts what it would there: to float16, unless it says another type."""
    device, plain = FakeTensor.__dict__["device"].fget, torch.autocast.__init__

    def shown(tensor: Any) -> torch.device:
        # Without function modes PyTorch computes shapes, by a program's own code too (``register_fake``).
        return IPU if torch._C._len_torch_function_stack() and _is_of_the_program() else device(tensor)

    def begin(region: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **named: Any) -> None:
        if device_type == IPU.type:
            device_type, dtype = home.type, dtype or torch.float16
        plain(region, device_type, dtype, *args, **named)

    with replaced(torch.autocast, __init__=begin), replaced(FakeTensor, device=property(shown)):
        yield


_WRITTEN, _COMPILED = torch.fx.Graph.python_code, graph_module._forward_from_src


class _Later(str):
    """The code of a graph that is not written yet."""

    graph: torch.fx.Graph


def _later(graph: torch.fx.Graph, root_module: str, *, verbose: bool = False, **options: Any) -> PythonCode:
    """``Graph.python_code``; what is to be read (``verbose``) is written."""
    if verbose:
        return _WRITTEN(graph, root_module, verbose=True, **options)
    source = _Later()
    source.graph = graph
    return PythonCode(source, {}, {})


class _Forward:
    """A method whose code is written when it is called, or asked for its signature."""

    def __init__(self, graph: torch.fx.Graph, fields: Any) -> None:
        self._graph, self._fields = graph, fields

    @cached_property
    def _compiled(self) -> Any:
        code = _WRITTEN(self._graph, "self")
        return _COMPILED(code.src, code.globals, self._fields)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._compiled)

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        return self if module is None else MethodType(self, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)


def _compiled(source: str, names: dict[str, Any], fields: Any = None) -> Any:
    """``_forward_from_src``, later."""
    return _Forward(source.graph, fields) if isinstance(source, _Later) else _COMPILED(source, names, fields)


@contextmanager
def no_code() -> Iterator[None]:
    """Within it, graphs have no code before they are called."""
    with replaced(torch.fx.Graph, python_code=_later), replaced(graph_module, _forward_from_src=_compiled):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch's own messages about failures are repeated in the exception.

    ``torch`` has hundreds of loggers; to set the level of one takes the longer the more others there are, so they are
    disabled. What is new in the meantime has the level of ``torch``. The structured trace is written out for its
    handlers, whatever the level.
    """
    logger = logging.getLogger("torch")
    level = logger.level
    others = [logging.getLogger(name) for name in logging.Logger.manager.loggerDict if name.startswith("torch.")]
    others = [child for child in others if not child.disabled]
    structured = logging.getLogger("torch.__trace")
    handlers, structured.handlers = structured.handlers, []
    logger.setLevel(logging.CRITICAL)
    for child in others:
        child.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            yield
    finally:
        for child in others:
            child.disabled = False
        logger.setLevel(level)
        structured.handlers = handlers


@contextmanager
def without_partial_graph() -> Iterator[None]:
    """An export that fails prints the graph so far; anything else that is written to stderr gets there."""
    written, hidden = io.StringIO(), ""
    try:
        with redirect_stderr(written):
            yield
    except Exception as error:
        hidden = str(getattr(error, "partial_fx_graph", ""))
        raise
    finally:
        text = written.getvalue()
        sys.stderr.write(text.replace(f"{hidden}\n", "") if hidden else text)


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Attention layers in evaluation mode as their ops, not as one fused op."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def custom_functions(own: Callable[..., Any], training: bool) -> Iterator[None]:
    """A custom autograd function is ``own(function, line, args, kwargs)``. A backward hook is an error where there is a
    backward pass: the export would drop it without a word. What is checkpointed is called."""
    apply = torch.autograd.Function.__dict__["apply"]

    def instead(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.utils.checkpoint.CheckpointFunction:
            function, _, *operands = args
            return function(*operands)
        if training and cls is BackwardHookFunction:
            raise ignored_hook("a backward hook of a module")
        if cls.__module__.partition(".")[0] == "torch" and not (training and cls is CrossMapLRN2d):
            return apply.__get__(None, cls)(*args, **kwargs)
        return own(cls, location_of(traceback.extract_stack()), args, kwargs)

    with replaced(torch.autograd.Function, apply=classmethod(instead)):
        yield


def ignored_hook(hook: str) -> UnsupportedError:
    """The error of a hook, which Python would have to run in the middle of a program."""
    return UnsupportedError(
        f"{location_of(traceback.extract_stack())}: {hook} is unsupported: it would not be called on the IPU; write "
        "what it does with PyTorch's own ops"
    )


def no_stacks() -> AbstractContextManager[None]:
    """The annotations say the user's line; nodes need not hold the text of whole stacks, a tenth of the time."""
    if getattr(torch.fx.config, "do_not_emit_stack_traces", None) is None:  # not in every build
        return nullcontext()
    return replaced(torch.fx.config, do_not_emit_stack_traces=True)


def kept_annotations() -> Any:
    """Within it PyTorch keeps the annotations of nodes."""
    return torch.fx.traceback.preserve_node_meta()
