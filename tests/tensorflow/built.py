"""What a test has built and heard: its programs and the errors that it expected, as the text of a golden row.

Nothing in it depends on values that are computed, on costs, or on what ran before in the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from ipuperf import ir as _ir
from ipuperf.runtime.executable import Executable

OF_EXECUTABLES: tuple[str, ...] = (
    "name",
    "report_name",
    "sync_pattern",
    "merging",
    "outlining",
    "prefetch_depth",
    "host_processes",
)
OF_EXECUTABLES += ("samples_per_run", "values_each_run", "copies_weights", "floating_point_exceptions", "runs")
FRONT_END = "ipuperf.frontends.tensorflow."
"""Whose own objects hold TensorFlow's."""
PATHS = re.compile(r"""[^\s'"(]*/(?=[^\s/'"(]+)""")
"""Folders before a name."""
COUNTS = re.compile(r"0x[0-9a-f]+|_*\d+")
"""Addresses, and numbers that TensorFlow and Keras count on in a process (the first layer has none)."""
NAMES = re.compile(r"0x[0-9a-f]+|(?<=[A-Za-z])_\d+")
"""The same in texts in which figures matter."""
SETS = re.compile(r"\{([^{}:]*)\}")
"""Sets in a text, whose order differs from process to process."""
LINES = re.compile(r'(\.py"?)(?::|, line )\d+')


def _option(executable: Executable, name: str) -> Any:
    """An attribute of an executable, or of a group of its options."""
    holders = (executable, executable.lowering, executable.host, executable.options)
    return next(getattr(holder, name) for holder in holders if hasattr(holder, name))


@dataclass
class Built:
    """What one test has made so far."""

    programs: list[_ir.Ir] = field(default_factory=list)
    executables: list[Executable] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def fail(self, error: BaseException | None) -> None:
        """Keep an error that the test expected."""
        if error is not None:
            text = LINES.sub(r"\1", PATHS.sub("", str(error)))
            text = SETS.sub(lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text)
            self.errors.append(f"{type(error).__name__}: {(COUNTS if _counted(error) else NAMES).sub('', text)}")

    @property
    def nothing(self) -> bool:
        """Whether the test neither built nor heard anything."""
        return not (self.programs or self.errors)

    def text(self) -> str:
        """The programs and the errors, as text."""
        lines = [line for program in self.programs for line in lines_of(program)]
        for executable in self.executables:
            what = [f"{name}={shown(_option(executable, name))}" for name in OF_EXECUTABLES]
            lines.append(f"on {executable.machine.name}: {unnumbered(', '.join(what))}")
        return "\n".join([*lines, *(f"error {error}" for error in self.errors)])


def _counted(error: BaseException) -> bool:
    """Whether the text is one of TensorFlow's or Keras's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(("tensorflow", "tf_keras"))


def unnumbered(text: str) -> str:
    """A name without what is counted over the process."""
    return COUNTS.sub("", text)


# -- programs ----------------------------------------------------------------------------------------------------------


def lines_of(program: _ir.Ir) -> Iterator[str]:
    """A program: its data, then the graphs with their ops."""
    graphs = list(program.all_graphs())
    names: dict[Any, str] = {graph: f"g{number}" for number, graph in enumerate(graphs)}
    for graph in graphs:
        tensors = list(dict.fromkeys([*graph.inputs, *graph.tensors.values()]))
        names |= {tensor: f"%{number}" for number, tensor in enumerate(tensors)}
        names |= {op: f"op{number}" for number, op in enumerate(graph.ops)}
    yield f"program of {program.replication_factor} replicas, {program.num_io_tiles} tiles for I/O"
    for graph in graphs:
        inputs = ", ".join(f"{names[t]} [{t.spec}]{' by ref' if t.by_ref else ''}" for t in graph.inputs)
        yield f"{names[graph]} {unnumbered(graph.name)} ({inputs}), {graph.phase}, {graph.own_gradient}"
        for tensor in graph.tensors.values():
            if isinstance(tensor, (_ir.Variable, _ir.Constant, _ir.Stream)):
                yield f"  {names[tensor]} {data_line(tensor)}"
        for op in graph.ops:
            yield f"  {names[op]} {op_line(op, names)}"
        yield f"  -> {', '.join(names[t] for t in graph.outputs)}"


def data_line(tensor: _ir.Tensor) -> str:
    """What is there before a program runs."""
    what = [type(tensor).__name__, unnumbered(tensor.name), str(tensor.spec), f"IPU {tensor.ipu}"]
    for name in ("grouping", "retrieval", "remote", "shard_over", "direction", "transfers"):
        if hasattr(tensor, name):
            what.append(f"{name}={shown(getattr(tensor, name))}")
    if isinstance(tensor, _ir.Constant):
        what.append(shown(tensor.data))
    return ", ".join(what)


def op_line(op: _ir.Op, names: Mapping[Any, str]) -> str:
    """An op: operands, attributes, results, place, and what it waits for."""
    operands = ", ".join(names.get(tensor, "?") for tensor in op.inputs)
    results = ", ".join(f"{unnumbered(tensor.name)} {tensor.spec}" for tensor in op.outputs)
    attributes = ", ".join(f"{name}={shown(value, names)}" for name, value in sorted(op.attributes.items()))
    earlier = sorted((names.get(before, "?") for before in op.graph.constraints.get(op, ())), key=lambda n: (len(n), n))
    place = f"IPU {op.ipu}, {op.tile_set}, {op.phase}, {unnumbered(op.scope)}"
    return f"{op.type} ({operands}) {{{attributes}}} -> ({results}) {place}, after {' '.join(earlier)}"


def shown(value: Any, names: Mapping[Any, str] | None = None) -> str:
    """A value of an attribute, the same in every process."""
    if isinstance(value, (bool, int, str, type(None), Enum, _ir.DType, _ir.RemoteBuffer)):
        return repr(value)
    if isinstance(value, (float, np.floating)):
        return f"{float(value):.4g}"
    if isinstance(value, np.ndarray):
        total = float(np.abs(value[np.isfinite(value)]).astype(np.float64).sum()) if value.dtype.kind in "biuf" else 0.0
        first = value.reshape(-1)[:4].tolist() if value.dtype.kind != "f" else []
        return f"{value.dtype}{value.shape} {total:.3g} {first}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{shown(k, names)}: {shown(v, names)}" for k, v in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(shown(v, names) for v in value)) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(shown(v, names) for v in value) + ")"
    if names and isinstance(value, (_ir.Tensor, _ir.Graph, _ir.Op)):
        return names.get(value, "?")
    if is_dataclass(value) and not isinstance(value, type) and not type(value).__module__.startswith(FRONT_END):
        parts = [f"{part.name}={shown(getattr(value, part.name), names)}" for part in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return getattr(value, "__qualname__", type(value).__name__)
