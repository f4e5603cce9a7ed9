"""A module as a graph of aten ops whose nodes know their block, their loss and the user's line.

``torch.export`` runs ``forward`` with stand-ins for tensors, under a mode that annotates every call of PyTorch with the
active block. ``run_decompositions`` then turns changes in place into values, and those ops that have no counterpart
here into simpler ones, once for each content (:mod:`~ipuperf.poptorch.export.reuse`).
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from ..aten.lowering import ExportError
from ..aten.table import LOSS_FUNCTIONS, decomposition_of, handler_of
from ..blocks import BlockRecorder, BlockUse, record_blocks
from ..errors import Error, UnsupportedError
from ..multi_conv import MultiConv
from .bodies import BODY
from .checks import check_exported
from .composites import few_composites, may_decompose
from .derivatives import GRAD, gradients, without_derivatives
from .equal_ops import simplified_once
from .in_place import DATA, DETACHING, SET_DATA, UnseenChanges, check_written, set_data, with_numbers, written
from .lines import (
    LINE,
    MODULE,
    calling_line,
    calling_module,
    explained,
    is_raised_by_user,
    location_of_node,
    paths_of,
    tags_of,
    told_at,
    unsupported_at,
)
from .loops import loops
from .module_state import Attributes, PlainTensors, buffers, check_buffers, check_dense, check_layouts, layout, layouts
from .own_gradients import Functions
from .pairs import without_complex
from .reuse import Kept, Simplified
from .rows import has_rows, refuse
from .structure import Signature, Structure, fixed_values, flatten, rebuild
from .substitutes import (
    call_with_one_type,
    cumulative_statistics,
    front_ends_in_force,
    masks_as_given,
    substitute_of,
    unchecked_distributions,
)
from .surroundings import (
    arguments_on,
    attribute_of,
    custom_functions,
    ignored_hook,
    kept_annotations,
    no_code,
    no_fast_path,
    no_stacks,
    on_ipus,
    quiet,
    read,
    without_partial_graph,
)
from .transforms import no_transform_left, transforms

BLOCK, LOSS = "ipuperf_block", "ipuperf_loss"
MULTI_CONV = "ipuperf_multi_conv"

_FOLLOWED = {torch.autograd.grad: gradients, DATA: torch.Tensor.detach, SET_DATA: set_data}
#: Attributes and methods of tensors that make no node: nothing to annotate.
_METADATA = frozenset({"device", "dim", "dtype", "get_device", "grad_fn", "is_complex", "is_cpu", "is_cuda",
                       "is_floating_point", "is_ipu", "is_leaf", "is_meta", "is_nested", "is_quantized", "is_sparse",
                       "layout", "ndim", "numel", "requires_grad", "shape", "size", "stride"})  # fmt: skip
#: Rounds of decomposition: an op may become one that has to be decomposed in turn.
_ROUNDS = 8
_KEPT = Kept()


class Traced:
    """An exported program.

    Attributes:
        program: the wrapped module's ops, with its signature and constants.
        uses: entries into blocks, in program order.
        results: structure of the module's result.
        multi_convs: the ``MultiConv`` scopes, by the number that nodes have.
    """

    def __init__(
        self, program: Simplified, uses: Sequence[BlockUse], results: Structure, multi_convs: Sequence[MultiConv]
    ) -> None:
        self.program = program
        self.uses = list(uses)
        self.results = results
        self.multi_convs = list(multi_convs)

    @property
    def graph(self) -> torch.fx.Graph:
        """The ops."""
        return self.program.graph


class _Results:
    """Structure of what the module returned. (An export undoes changes of a module's own attributes.)"""

    structure: Structure | None = None


class _Flat(torch.nn.Module):
    """The module with tensors in and tensors out."""

    def __init__(
        self, module: torch.nn.Module, signature: Signature, arguments: Structure, recorder: BlockRecorder
    ) -> None:
        super().__init__()
        self.module = module
        self.signature = signature
        self.arguments = arguments
        self.recorder = recorder
        self.results = _Results()
        self.reshaped: set[int] = set()

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the module; each call records its blocks anew. An input whose shape it changes in place stays as it is:
        the next trace gives the module a view of it."""
        self.recorder.begin()
        originals, seen = buffers(self.module), layouts(self.module)
        inputs = [_alias(leaf) if number in self.reshaped else leaf for number, leaf in enumerate(leaves)]
        shown = [layout(leaf) for leaf in leaves]
        result = self.signature.call(self.module, rebuild(self.arguments, lambda index: inputs[index]))
        check_buffers(self.module, originals)
        check_layouts(seen)
        changed = {number for number, leaf in enumerate(leaves) if layout(leaf) != shown[number]}
        if changed:
            self.reshaped |= changed
            raise _ReshapedError
        self.results.structure, tensors, _ = flatten(result)
        if has_rows(*fixed_values(self.results.structure)):
            refuse("a result")
        return tuple(tensors)


class _ReshapedError(Exception):
    """The shape of an input was changed in place."""


def _alias(leaf: torch.Tensor) -> torch.Tensor:
    """A view of an input, outside of all blocks."""
    with torch._C.DisableTorchFunction():
        view: torch.Tensor = torch.ops.aten.alias(leaf)
    return view


class _Tagger(TorchFunctionMode):
    """Annotates the nodes of each call: active block (None: none), module, line, whether gradients flow, which loss.

    Attributes:
        home: where the stand-ins for tensors are.
        paths: path of each module of the model, by the module's identity.
    """

    def __init__(
        self,
        recorder: BlockRecorder,
        training: bool,
        functions: Functions,
        home: torch.device,
        paths: Mapping[int, str],
    ) -> None:
        super().__init__()
        self.functions = functions
        self.paths = paths
        self.recorder = recorder
        self.training = training
        self.home = home
        self.losses = 0
        self.unseen = UnseenChanges()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if attribute_of(func) in _METADATA:
            return read(func, args, kwargs or {})
        if (kwargs or {}).get("generator") is not None:
            raise UnsupportedError(
                f"{calling_line()}: {func.__name__}: a generator is unsupported; the seed of all random numbers is "
                "that of poptorch.Options().randomSeed"
            )
        if self.training and func is torch.Tensor.register_post_accumulate_grad_hook:
            raise ignored_hook(f"Tensor.{func.__name__}")
        if self.training and func is torch.Tensor.register_hook:
            func = self.functions.hook
        # detach makes a node as well; its own tag has to say that gradients stop.
        gradients = torch.is_grad_enabled() and func not in DETACHING
        tags: dict[str, Any] = {BLOCK: self.recorder.current, GRAD: gradients, LOSS: None}
        if self.recorder.bodies:
            tags[BODY] = "/".join(self.recorder.bodies)
        if self.recorder.multi_conv is not None:
            tags[MULTI_CONV] = self.recorder.multi_conv
        tags[LINE], tags[MODULE] = calling_line(), calling_module(self.paths)
        if getattr(func, "__name__", "") in LOSS_FUNCTIONS:
            self.losses += 1
            tags[LOSS] = self.losses
        with unsupported_at(tags[LINE]):
            return self._called(tags, func, args, kwargs)

    def _called(self, tags: dict[str, Any], func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call whose nodes get ``tags``."""
        name = getattr(func, "__name__", "")
        changes = written(func, args, kwargs or {})
        if changes is not None:
            check_written(func, changes)
        # This looks at the operand as it is before the call changes it.
        changed = self.unseen.changed(func, args, kwargs or {}) if self.training else None
        if func in _FOLLOWED:  # the export cannot follow them
            func = _FOLLOWED[func]
        arguments = arguments_on(self.home, func, args, kwargs or {})
        run = partial(_annotated, tags, partial(call_with_one_type, substitute_of(func), name, *arguments))
        if changed is not None:
            view = args[0] if args and self.unseen.flows(args[0]) else None
            return with_numbers(changed, view, run, lambda flow: torch.fx.traceback.annotate({**tags, GRAD: flow}))
        result = run()
        if self.training and args:
            self.unseen.note(func, args[0], result)
        return result


def _annotated(tags: dict[str, Any], run: Callable[[], Any]) -> Any:
    with torch.fx.traceback.annotate(tags):
        return run()


def _surroundings(
    functions: Functions, training: bool, home: torch.device
) -> tuple[AbstractContextManager[object], ...]:
    """What is different about PyTorch while a module is exported."""
    return (
        quiet(),
        no_fast_path(),
        custom_functions(functions.apply, training),
        no_stacks(),
        no_code(),
        kept_annotations(),
        unchecked_distributions(),
        loops(),
        masks_as_given(),
        cumulative_statistics(),
        front_ends_in_force(),
        transforms(),
        on_ipus(home),
    )


def trace(
    module: torch.nn.Module,
    signature: Signature,
    arguments: Structure,
    leaves: Sequence[torch.Tensor],
    training: bool = False,
) -> Traced:
    """Export ``module`` called with these arguments, for a training program or one for inference.

    Raises:
        ExportError: the module cannot be exported; the message names the user's line and the reason.
        UnsupportedError: for training a hook of a gradient, or a ``backward`` that cannot be traced.
    """
    if not hasattr(torch.fx.traceback, "annotate"):
        raise ExportError(f"torch {torch.__version__} has no torch.fx.traceback.annotate; 2.13 or later is needed")
    check_dense(module)
    with record_blocks(training) as recorder:
        flat, plain = _Flat(module, signature, arguments, recorder), PlainTensors(module)
        functions = Functions(training)
        attributes, home = Attributes(module), leaves[0].device if leaves else torch.device("cpu")
        with ExitStack() as stack:
            tagger = _Tagger(recorder, training, functions, home, paths_of(module))
            for context in (*_surroundings(functions, training, home), tagger):
                stack.enter_context(context)
            try:
                program = _exported(flat, leaves)
            # Errors of ours name the user's line already.
            except Error:
                raise
            except Exception as error:
                # What the user's forward raises is for the user to see, not a failure of the export.
                if is_raised_by_user(error):
                    raise
                raise explained(error) from error
            finally:
                attributes.restore()
        uses, multi_convs = list(recorder.uses), list(recorder.multi_convs)
    check_exported(program, location_of_node)
    functions.named(program)
    # This stands before simplification, which turns detach into alias.
    _stop_at_detached(program.graph)
    plain.made_constant(program)
    with quiet(), no_stacks(), no_code(), no_transform_left(), told_at(program.graph, module):
        simplified = _KEPT.simplified(program, _simplified_by_kind, _annotation)
    assert flat.results.structure is not None
    if not leaves:
        simplified = _without_input(simplified)
    return Traced(simplified, uses, flat.results.structure, multi_convs)


def _stop_at_detached(graph: torch.fx.Graph) -> None:
    """Say where gradients stop within PyTorch's own functions, whose calls of ``detach`` the tagger does not see."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.meta["custom"] = {**node.meta.get("custom", {}), GRAD: False}


def _exported(flat: _Flat, leaves: Sequence[torch.Tensor]) -> Any:
    try:
        with without_partial_graph():
            return torch.export.export(flat, tuple(leaves) or (torch.zeros(()),), strict=False)
    except _ReshapedError:
        # Each retry aliases at least one more input, so retries end.
        return _exported(flat, leaves)


def _without_input(program: Simplified) -> Simplified:
    """The program of a module without arguments. Its export was given one that nobody uses: without any, PyTorch puts
    the constants of the module behind the ops that take them."""
    (unused,) = program.graph_signature.user_inputs
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.name != unused:
            values[node] = graph.node_copy(node, values.__getitem__)
    specs = [spec for spec in program.graph_signature.input_specs if spec.arg.name != unused]
    signature = replace(program.graph_signature, input_specs=specs)
    return Simplified(torch.fx.GraphModule(torch.nn.Module(), graph), signature, program.constants)


# -- simplification ----------------------------------------------------------------------------------------------------


def _simplified_by_kind(program: Any) -> Any:
    """:func:`_simplified`, of each kind of op once where that gives the same; of real tensors only."""
    simple = without_complex(simplified_once(program, _simplified, kept_annotations) or _simplified(program))
    return without_derivatives(simple)


def _simplified(program: Any) -> Any:
    """Functional ops only, and as far as PyTorch can tell only those with a handler."""
    table = _table(program)
    # The first round runs even with an empty table: it turns changes in place into values.
    program = _decomposed(program, table)
    if table:
        _number(program.graph)
    for _ in range(_ROUNDS):
        table = _table(program)
        if not table:
            break
        program = _decomposed(program, table)
    return program


def _table(program: Any) -> dict[Any, Any]:
    """Decompositions of the ops that have no handler. Those that change an operand become others first, those that
    PyTorch takes apart by itself are in no table."""
    table: dict[Any, Any] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and handler_of(node.target) is None and may_decompose(node.target):
            decomposition = decomposition_of(node.target)
            if decomposition is not None and not node.target._schema.is_mutable:
                table[node.target] = decomposition
    return table


def _number(graph: torch.fx.Graph) -> None:
    """Names without the gaps of what a decomposition began with and dropped, as another trace would give them."""
    names = {*dir(builtins), *keyword.kwlist, *(node.name for node in graph.nodes if node.op != "call_function")}
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op == "call_function":
            base = name = re.sub(r"_\d+$", "", node.name)
            while name in names:
                counts[base] += 1
                name = f"{base}_{counts[base]}"
            names.add(name)
            node.name = name


def _decomposed(program: Any, table: Mapping[Any, Any]) -> Any:
    """``run_decompositions``; it asserts that annotations of placeholders stay the same, and its own do not."""
    for node in program.graph.nodes:
        if node.op == "placeholder":
            node.meta.pop("custom", None)
    for region in program.graph_module.modules():
        if isinstance(region, torch.fx.GraphModule):
            _convert_copied(region.graph)
            if region is not program.graph_module:
                region.forward = partial(_interpreted, region)
    with kept_annotations(), few_composites(program):
        return program.run_decompositions(dict(table))


def _convert_copied(graph: torch.fx.Graph) -> None:
    """Give what ``copy_`` reads the type and shape of what it writes, and each a source of its own: of the last copy
    into a buffer ``torch.export`` keeps the source alone, whatever its type and shape, and knows it by its name
    (``_remove_unnecessary_copy_op_pass``)."""
    sources: set[torch.fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        to, source = node.args[:2]
        into = to.meta["val"]
        if not isinstance(source, torch.fx.Node):  # a number
            with graph.inserting_before(node):
                source = graph.call_function(torch.ops.aten.full_like.default, (to, source))
            source.meta = {"custom": node.meta.get("custom", {}), "val": into}
        value = source.meta["val"]
        steps: list[tuple[Any, tuple[Any, ...]]] = []
        if value.dtype != into.dtype:
            steps.append((torch.ops.aten.to.dtype, (into.dtype,)))
        if value.shape != into.shape:
            steps.append((torch.ops.aten.expand.default, (list(into.shape),)))
        if (source in sources or source.op == "placeholder") and not steps:
            steps.append((torch.ops.aten.clone.default, ()))
        sources.add(source)
        with graph.inserting_before(node):
            for target, arguments in steps:
                source = graph.call_function(target, (source, *arguments))
                source.meta["custom"] = node.meta.get("custom", {})
        node.update_arg(1, source)


def _interpreted(module: torch.fx.GraphModule, *args: Any) -> Any:
    """The graph of a region (``no_grad``, ``autocast``) run node by node, which keeps annotations; its code does
    not."""
    return torch.fx.Interpreter(module).run(*args)


def _annotation(node: torch.fx.Node) -> Any:
    return sorted(tags_of(node).items()), location_of_node(node)
