"""The ops of ``poptorch``: what they compute in native PyTorch, and marks that an export finds.

``identity_loss``, ``recomputationCheckpoint``, ``set_available_memory``, ``serializedMatMul``, ``nop``,
``set_overlap_for_input``, ``set_overlap_for_output`` and ``ipu_print_tensor`` are PyTorch ops of the library
``ipuperf`` (:data:`MARKS`, :mod:`.aten_marks`), so ``torch.export`` keeps them in its graph; natively all but
``identity_loss`` copy their input. Ops without an equivalent here raise
:class:`~ipuperf.poptorch.errors.UnsupportedError` when called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch

from ipuperf.ops.printing import FLOAT_FORMATS, text_of

from .aten import marks as aten_marks
from .aten.lowering import narrowed
from .blocks import isRunningOnIpu, recorder
from .effects import EFFECTS
from .enums import MatMulSerializationMode, OverlapMode
from .errors import Error, InputError, UnsupportedError, require

#: The marks that do nothing but copy their first argument, as PyTorch ops; a ``mode`` is the value of a
#: ``MatMulSerializationMode`` or an ``OverlapMode``.
MARKS = {
    "nop": "(Tensor x) -> Tensor",
    "set_available_memory": "(Tensor x, float proportion) -> Tensor",
    "set_matmul_serialization": "(Tensor product, str mode, SymInt factor, bool keep_precision) -> Tensor",
    "set_overlap_for_input": "(Tensor x, str mode) -> Tensor",
    "set_overlap_for_output": "(Tensor x, str mode) -> Tensor",
}


# -- the PyTorch ops -------------------------------------------------------------------------------------------------


def _declare(name: str, schema: str) -> None:
    op = torch.library.custom_op(f"ipuperf::{name}", lambda x, *_: x.clone(), mutates_args=(), schema=schema)
    op.register_fake(lambda x, *_: torch.empty_like(x))
    op.register_autograd(lambda ctx, grad: (grad, *[None] * schema.count(",")))


for _name, _schema in MARKS.items():
    _declare(_name, _schema)


@torch.library.custom_op("ipuperf::ipu_print_tensor", mutates_args=())
def _ipu_print_tensor(
    x: torch.Tensor,
    title: str,
    print_gradient: bool,
    summarise_threshold: int,
    edge_items: int,
    max_line_width: int,
    digits: int,
    float_format: str,
    separator: str,
    open_bracket: str,
    close_bracket: str,
) -> torch.Tensor:
    text = text_of(
        x.detach().cpu().numpy(),
        summarise_threshold=summarise_threshold,
        edge_items=edge_items,
        max_line_width=max_line_width,
        digits=digits,
        float_format=float_format,
        separator=separator,
        open_bracket=open_bracket,
        close_bracket=close_bracket,
    )
    print(f"{title or 'tensor'}: {text}")
    return x.clone()


_ipu_print_tensor.register_fake(lambda x, *_: torch.empty_like(x))


def _print_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.title, ctx.print_gradient, *ctx.format = inputs


def _print_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if ctx.print_gradient:
        title = f"{ctx.title or 'tensor'}_gradient"
        grad = torch.ops.ipuperf.ipu_print_tensor(grad, title, False, *ctx.format)
    return (grad, *[None] * (2 + len(ctx.format)))


_ipu_print_tensor.register_autograd(_print_backward, setup_context=_print_setup)


# -- marks -----------------------------------------------------------------------------------------------------------


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark ``x`` as the loss from which gradients start, reduced by ``sum``, ``mean`` or ``none``.

    Raises ``AssertionError`` for another reduction.
    """
    _check_tensor("identity_loss", x)
    return aten_marks.identity_loss(x, reduction)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep these tensors from the forward to the backward pass instead of recomputing them.

    Returns one tensor for one, a tuple for several, and a list or tuple for one list or tuple.
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        return type(tensors[0])(recomputationCheckpoint(tensor) for tensor in tensors[0])
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise InputError("All inputs must be tensors")
    marked = tuple(aten_marks.recomputation_checkpoint(tensor) for tensor in tensors)
    return marked[0] if len(marked) == 1 else marked


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Limit the temporary memory of the op that made ``tensor`` to a proportion (0 to 1) of the tiles' memory."""
    _check_tensor("set_available_memory", tensor)
    share = available_memory_proportion
    good = isinstance(share, int | float) and 0 <= share <= 1
    require(good, f"set_available_memory: {share!r} given, expected a number from 0 to 1")
    marked: torch.Tensor = torch.ops.ipuperf.set_available_memory(tensor, float(share))
    return marked


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``lhs @ rhs`` computed in ``factor`` parts along the dimension that ``mode`` names, which it must divide."""
    require(
        isinstance(mode, MatMulSerializationMode),
        f"serializedMatMul: mode {mode!r} given, expected a member of poptorch.MatMulSerializationMode",
    )
    require(isinstance(factor, int), f"serializedMatMul: factor {factor!r} given, expected an int")
    require(isinstance(keep_precision, bool), f"serializedMatMul: keep_precision {keep_precision!r} is not a bool")
    size = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }.get(mode)
    if size is not None and (factor < 1 or size % factor):
        raise Error(f"serializedMatMul: factor {factor} does not divide the {size} of {mode.name}")
    product: torch.Tensor = torch.ops.ipuperf.set_matmul_serialization(
        torch.matmul(lhs, rhs), mode.value, factor, keep_precision
    )
    return product


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """An identity that stays in the program."""
    _check_tensor("nop", tensor)
    marked: torch.Tensor = torch.ops.ipuperf.nop(tensor)
    return marked


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print ``tensor``, and its gradient in the backward pass; the result has to be used.

    Within a model the standard error stream gets the numbers of each micro-batch, which travel to the host in simulated
    time (:class:`ipuperf.ops.PrintTensor`, which says what the arguments after ``print_gradient`` do); outside of one
    the standard output stream gets them."""
    _check_tensor("ipu_print_tensor", tensor)
    require(
        float_format in FLOAT_FORMATS,
        f"ipu_print_tensor: float_format={float_format!r}; allowed: {', '.join(FLOAT_FORMATS)}",
    )
    marked: torch.Tensor = torch.ops.ipuperf.ipu_print_tensor(
        tensor,
        title,
        bool(print_gradient),
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )
    return marked


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Inputs of the model (a tensor, or tuples, lists and dictionaries of tensors) that are loaded on I/O tiles while
    the compute tiles work on the micro-batch before: within a weight update (``OverlapAccumulationLoop``) or also from
    one device iteration to the next. Needs ``TensorLocations.numIOTiles`` and ``ShardedExecution``."""
    return _overlap("set_overlap_for_input", torch.ops.ipuperf.set_overlap_for_input, input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """As :func:`set_overlap_for_input` for results of the model, stored while the next micro-batch is computed."""
    return _overlap("set_overlap_for_output", torch.ops.ipuperf.set_overlap_for_output, output_tensors, mode)


# -- control flow and dynamic indices --------------------------------------------------------------------------------


def for_loop(count: int, body: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Call ``body(*tensors)`` ``count`` times, each time with what it gave before; the loop is unrolled in a program.

    ``body`` gives as many tensors as it takes, of the same shapes and types. Raises ``Error`` in a training program.
    """
    if not isinstance(inputs, list):
        raise InputError(
            "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. (Object is not list)"
        )
    for number, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"poptorch.for_loop: inputs is a list of tensors; number {number} is a {type(tensor).__name__}"
            )
    require(isinstance(count, int) and count >= 0, f"for_loop: count {count!r} given, expected an int from 0")
    _only_inference("for_loop")
    state = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        results = body(*state)
        results = list(results) if isinstance(results, list | tuple) else [results]
        specs_before, specs_after = _specs(state), _specs(results)
        if specs_before != specs_after:
            raise Error(f"for_loop: the body takes {specs_before} and gives {specs_after}; they have to be equal")
        state = results
    return state


@torch.library.custom_op("ipuperf::conditional", mutates_args=())
def _conditional(
    number: int, condition: torch.Tensor, then_results: list[torch.Tensor], else_results: list[torch.Tensor]
) -> list[torch.Tensor]:
    return [result.clone() for result in (then_results if bool(condition) else else_results)]


@_conditional.register_fake
def _(number: int, condition: torch.Tensor, then_results: Any, else_results: Any) -> list[torch.Tensor]:
    return [torch.empty_like(result) for result in then_results]


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inputs: list[torch.Tensor],
    else_body: Callable[..., Any],
    else_inputs: list[torch.Tensor],
) -> list[torch.Tensor]:
    """What ``then_body(*then_inputs)`` gives where ``condition`` (one boolean element) is true, otherwise what
    ``else_body(*else_inputs)`` gives.

    In a program both bodies are graphs, of which one is executed (:class:`ipuperf.ops.If`; its time is that of the one
    that takes longer). They may use tensors from around them; inputs are passed by value.

    Raises ``Error`` in a training program, and for bodies whose results differ in number, shape or type.
    """
    _check_tensor("cond", condition)
    _only_inference("cond")
    if condition.numel() != 1:
        raise Error(f"cond: the condition has shape {tuple(condition.shape)}; one element is needed")
    tracing = recorder()
    if tracing is None:
        return _executed(then_body, then_inputs) if bool(condition) else _executed(else_body, else_inputs)
    known = condition.to(torch.bool)
    number, branches = tracing.conditional(), []
    for name, body, inputs in (("then", then_body, then_inputs), ("else", else_body, else_inputs)):
        with tracing.body(f"{number}.{name}"):
            branches.append(_executed(body, inputs))
    if _specs(branches[0]) != _specs(branches[1]):
        raise Error(
            f"cond: then_body gives {_specs(branches[0])}, else_body gives {_specs(branches[1])}; they have to be equal"
        )
    return list(torch.ops.ipuperf.conditional(number, known, *branches))


def _executed(body: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of one body of a conditional."""
    if not isinstance(inputs, list | tuple) or not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
        raise InputError(f"cond: {inputs!r} given as inputs of a body, expected a list of tensors")
    results = body(*(tensor.clone() for tensor in inputs))
    results = list(results) if isinstance(results, list | tuple) else [results]
    for tensor in results:
        _check_tensor("cond: a body's result", tensor)
    return results


def _only_inference(name: str) -> None:
    tracing = recorder()
    if tracing is not None and tracing.training:
        raise Error(f"poptorch.{name}() is only supported in inference models; this one is a training model")


def _specs(tensors: Sequence[Any]) -> list[Any]:
    """Shapes and types."""
    return [(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else type(t).__name__ for t in tensors]


def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """``start:start + size:step`` of dimension ``dim``, where ``start`` is a tensor.

    Raises:
        Error: ``size`` is not above 0, or, in a program, no divisor of the dimension's length.
    """
    _check_tensor("dynamic_slice", tensor)
    indices = _indices("dynamic_slice", dim, start, size, step, tensor)
    if isRunningOnIpu() and tensor.shape[dim] % size:
        raise Error(
            f"dynamic_slice: size {size} does not divide dimension {dim}, which has {tensor.shape[dim]} elements"
        )
    return tensor.index_select(dim, indices)


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """A copy of ``input`` with ``size`` elements of dimension ``dim`` from ``start`` (a tensor) replaced by ``src``.

    Positions beyond the end go on from the begin: a device checks none (PopLibs, ``DynamicUpdateSlice1D``), and loops
    of generation on the device write one behind the last (Optimum Graphcore).
    """
    _check_tensor("dynamic_update", input)
    _check_tensor("dynamic_update", src)
    if input.dim() != src.dim():
        raise Error(f"dynamic_update: input has {input.dim()} dimensions, src {src.dim()}; both need as many")
    if input.dtype != src.dtype:
        types = [narrowed(tensor.dtype) if isRunningOnIpu() else tensor.dtype for tensor in (input, src)]
        if types[0] != types[1]:
            raise Error(f"dynamic_update: input is {types[0]}, src {types[1]}; both need one type")
        src = src.to(input.dtype)
    indices = _indices("dynamic_update", dim, start, size, 1, input)
    return input.index_copy(dim, indices % input.shape[dim], src)


def ctc_beam_search_decoder(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> list[torch.Tensor]:
    """The likeliest labels of sequences, of logarithms of probabilities ``probs (T, N, C)`` and ``lengths (N,)``.

    Args:
        blank: the class that is no label.
        beam_width: prefixes that are kept from step to step.
        top_paths: how many paths come back.

    Returns:
        Logarithms of the paths' probabilities ``(N, top_paths)``, their lengths, and their labels
        ``(N, top_paths, T)``, padded with the blank.

    Raises:
        UnsupportedError: outside of a program.
    """
    _check_tensor("ctc_beam_search_decoder", probs)
    _check_tensor("ctc_beam_search_decoder", lengths)
    return list(aten_marks.beam_search(probs, lengths, blank, beam_width, top_paths))


# -- names and hints -------------------------------------------------------------------------------------------------


_HintT = TypeVar("_HintT", bound="_Hint")


class _Hint:
    """What a ``with`` statement enters and leaves without effect."""

    def __enter__(self: _HintT) -> _HintT:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class NameScope(_Hint):
    """``with poptorch.NameScope("head"):`` names ops in PopART; without effect, which is said once."""

    def __init__(self, name: str) -> None:
        require(isinstance(name, str), f"NameScope: {name!r} given, expected a string")
        EFFECTS.given("NameScope(name)", name)
        self.name = name


class Attribute(_Hint):
    """Hints to PopART for the ops inside a ``with`` statement; without effect, which is said once."""

    def __init__(self, **attributes: Any) -> None:
        EFFECTS.given("Attribute(**attributes)", attributes)
        self.attributes = attributes


# -- not here --------------------------------------------------------------------------------------------------------


def fps(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported."""
    raise UnsupportedError("poptorch.fps is not supported: there is no such op here")


def nearest(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported."""
    raise UnsupportedError("poptorch.nearest is not supported: there is no such op here")


def _overlap(name: str, mark: Any, tensors: Any, mode: object) -> Any:
    require(isinstance(mode, OverlapMode), f"{name}: mode {mode!r} given, expected a member of poptorch.OverlapMode")
    assert isinstance(mode, OverlapMode)
    if mode is OverlapMode.NoOverlap:
        return tensors
    if isinstance(tensors, dict):
        return {key: _overlap(name, mark, value, mode) for key, value in tensors.items()}
    if isinstance(tensors, tuple) and hasattr(tensors, "_fields"):
        return type(tensors)(*(_overlap(name, mark, value, mode) for value in tensors))
    if isinstance(tensors, list | tuple):
        return type(tensors)(_overlap(name, mark, value, mode) for value in tensors)
    _check_tensor(name, tensors)
    return mark(tensors, mode.value)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise Error(f"{name} must take a torch.tensor argument. {type(value)} is not supported.")


def _indices(name: str, dim: int, start: object, size: int, step: int, like: torch.Tensor) -> torch.Tensor:
    whole: Sequence[tuple[str, object]] = (("Dimension", dim), ("Size", size), ("Step", step))
    for label, value in whole:
        if not isinstance(value, int):
            raise Error(f"{name}: {label} must be an integer, got {value!r}.")
    if not isinstance(start, torch.Tensor):
        raise Error(f"{name}: the start must be a torch.tensor, got {type(start)}.")
    if size == 0:
        raise Error(f"{name}: size is 0, so the slice is empty")
    if size < 0:
        raise Error(f"{name}: size is {size}, so the slice ends before its start")
    return start.reshape(1).to(torch.int64) + torch.arange(0, size, step, device=like.device)
