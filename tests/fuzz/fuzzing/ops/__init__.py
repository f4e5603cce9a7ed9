"""One PopXL op at a time, with random operands and arguments, in all the places where it may stand; PyTorch says what
it gives, and what its gradient is.

``around`` is the place: the main graph, with variables or constants; a graph that is called, with its gradient; the
body of a repeat, a branch of a conditional; a body that loads its operands from the host, several times in a run and on
several replicas.
"""

import contextlib
import importlib
import io
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf.popxl import ops, transforms

from ..invariants import trace_problems
from ..names import used_by
from ..outcome import Outcome
from ..stored import Stored
from .cases import CASES, Case
from .cases.base import FLOATS, Operand, data
from .cases.networks import FORMATS
from .cases.special import REPLICAS

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda a: a,
    "list": lambda a: a.tolist(),
    "tensor": lambda a: torch.tensor(a.tolist(), dtype=getattr(torch, a.dtype.name, None)),
    "strided": lambda a: np.repeat(a[..., None], 2, -1)[..., 1],
    "scalar": lambda a: a[()],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}
"""What host data may come as; ``scalar`` is NumPy's of an array without axes."""
FEEDS: dict[str, Callable[[dict[Any, Any]], Mapping[Any, Any]]] = {"dict": dict, "mapping": types.MappingProxyType}
TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 2e-5}


@dataclass
class Program(Stored):
    """A call of the op ``name``. ``hosted`` are positions of operands that are host data. ``form`` is what variables
    are made of, ``feed`` the mapping that a run gets; a run makes ``transfers`` loads on ``replicas``."""

    seed: int
    name: str
    dtype: str
    operands: list[Operand]
    arguments: dict[str, Any]
    around: str = "main"
    hosted: list[int] | None = None
    form: str = "array"
    feed: str = "dict"
    transfers: int = 1
    replicas: int = 1

    def size(self) -> int:
        """Number of ops."""
        return 1


def drawn_names() -> set[str]:
    """The ops of the table, and what their programs use besides."""
    dtypes = {dtype for case in CASES.values() for dtype in case.dtypes}
    return {*CASES, *used_by(sys.modules[__name__]), *(f"popxl.{name}" for name in dtypes | FORMATS.keys())}


def draw(r: random.Random) -> Program:
    """A random call."""
    name = r.choice(list(CASES))
    case = CASES[name]
    drawn = None
    while drawn is None:
        drawn = case.draw(r)
    operands, arguments = drawn
    program = Program(r.randrange(1 << 20), name, r.choice(case.dtypes), operands, arguments, r.choice(case.around))
    program.form, program.feed = r.choice(list(FORMS)), r.choice(list(FEEDS))
    if program.around == "stream":
        program.transfers = r.randint(1, 3)
        program.replicas = REPLICAS if case.across else r.choice([1, 1, REPLICAS])
    program.hosted = [i for i in case.hostable if r.random() < 0.2] if len(operands) > 1 else []
    program.hosted = program.hosted[: len(operands) - 1]
    return program


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of values and gradients."""
    case = CASES[program.name]
    samples = [arrays(program, number) for number in range(program.transfers * program.replicas)]
    weights = np.random.default_rng(program.seed + 1)
    device = Device(program, case, samples)
    got = device.run(weights)
    outcome = Outcome()
    for what, found, expected in _compared(program, case, samples, got, device.seeds):
        outcome.compared += expected.numel()
        outcome.problems += _differences(f"{program.name}, {what}", found, expected, program, case)
    if trace and device.session is not None:
        outcome.problems += trace_problems(device.session.executable)
    return outcome


def arrays(program: Program, number: int) -> list[np.ndarray]:
    rng = np.random.default_rng([program.seed, number])
    return [data(operand, program.dtype, rng) for operand in program.operands]


def _has_gradient(program: Program, case: Case) -> bool:
    gradient = case.gradient(program.arguments) if callable(case.gradient) else case.gradient
    return program.around == "call" and program.dtype in FLOATS and gradient


def _differentiable(program: Program) -> list[int]:
    """Positions of operands that have gradients."""
    own = [program.dtype if dtype == "any" else dtype for _, _, dtype, *_ in program.operands]
    return [i for i, dtype in enumerate(own) if dtype in FLOATS and i not in (program.hosted or ())]


# -- by ipuperf --------------------------------------------------------------------------------------------------------


class Device:
    """The program in PopXL, with a session."""

    def __init__(self, program: Program, case: Case, samples: list[list[np.ndarray]]) -> None:
        self.program, self.case, self.samples = program, case, samples
        self.streams: list[tuple[int, Any]] = []
        self.seeds: list[np.ndarray] = []
        self.stored: list[Any] = []
        self.function = _resolved(program.name)
        self.session: Any = None

    def run(self, weights: np.random.Generator) -> list[list[np.ndarray]]:
        """The results of each sample, gradients after the values."""
        program = self.program
        if program.around == "host":
            made = self.case.build(self.function, *self.samples[0], **program.arguments)
            return [[np.asarray(array) for array in (made if isinstance(made, list) else [made])]]
        self.session = self.built(weights)
        with self.session, contextlib.redirect_stderr(io.StringIO()):  # what print_tensor prints
            found = self.session.run(FEEDS[program.feed]({s: self._fed(i) for i, s in self.streams}))
        lead = len(self.samples)
        results = [_plain(found[s]).reshape(lead, *s.shape) for s in self.stored]
        return [[result[number] for result in results] for number in range(lead)]

    def built(self, weights: np.random.Generator) -> Any:
        """A session that has not run."""
        program = self.program
        ir = popxl.Ir(program.replicas)
        ir.num_host_transfers = program.transfers
        with ir.main_graph, popxl.in_sequence(True):
            if program.around == "stream":
                ops.repeat(ir.create_graph(self._loaded), program.transfers)
            else:
                for tensor in self._placed(ir, weights):
                    self._store(tensor)
        return popxl.Session(ir, "ipu_hw")

    def _fed(self, position: int) -> Any:
        """The data of an operand for all transfers and replicas; axes of one are left out."""
        program = self.program
        rows = np.stack([sample[position] for sample in self.samples])
        lead = [n for n in (program.transfers, program.replicas) if n > 1]
        return rows.reshape((*lead, *rows.shape[1:]))

    def _store(self, tensor: Any) -> None:
        stream = popxl.d2h_stream(tensor.shape, tensor.dtype)
        ops.host_store(stream, tensor)
        self.stored.append(stream)

    def _loaded(self) -> None:
        """The body that loads and stores."""
        operands = []
        for position, array in enumerate(self.samples[0]):
            if position in (self.program.hosted or ()):
                operands.append(self._host(position))
                continue
            stream = popxl.h2d_stream(array.shape, popxl.dtype.as_dtype(array))
            self.streams.append((position, stream))
            operands.append(ops.host_load(stream))
        for tensor in self._called(operands):
            self._store(tensor)

    def _host(self, position: int) -> Any:
        """An operand as host data; the same for all samples."""
        array = self.samples[0][position]
        for sample in self.samples:
            sample[position] = array
        return FORMS[self.program.form](array)

    def _called(self, tensors: Sequence[Any]) -> list[Any]:
        """The call; a list of its results."""
        with popxl.in_sequence(True):
            made = self.case.build(self.function, *tensors, **self.program.arguments)
        return [made] if isinstance(made, popxl.Tensor) else list(made)

    def _placed(self, ir: Any, weights: np.random.Generator) -> list[Any]:
        """The results of the call where it stands."""
        program, operands, tensors = self.program, [], []
        for position, array in enumerate(self.samples[0]):
            if position in (program.hosted or ()):
                operands.append(self._host(position))
                continue
            make = popxl.constant if program.around == "constants" else popxl.variable
            dtype = popxl.dtype.as_dtype(array)
            tensors.append(make(FORMS[program.form](array), dtype, downcast=False))
            operands.append(None)
        if program.around in ("main", "constants"):
            return self._called(_filled(operands, tensors))
        graph = ir.create_graph(lambda *x: self._outputs(_filled(operands, x)), *tensors)
        return AROUND[program.around](self, ir, graph, tensors, weights)

    def _outputs(self, operands: list[Any]) -> Any:
        return tuple(self._called(operands))

    def in_call(self, ir: Any, graph: Any, tensors: list[Any], weights: np.random.Generator) -> list[Any]:
        """Values, and gradients of what has some."""
        if not _has_gradient(self.program, self.case):
            return list(ops.call(graph, *tensors))
        hosted = self.program.hosted or ()
        places = [sum(j not in hosted for j in range(i)) for i in _differentiable(self.program)]
        values = graph.outputs
        given = [t for t in values if t.dtype.name in FLOATS]
        info = transforms.autodiff(graph, given, [graph.inputs[i] for i in places])
        self.seeds = [weights.normal(size=t.shape).astype(t.dtype.as_numpy()) for t in given]
        site = ops.call_with_info(graph, *tensors)
        seeds = [popxl.constant(seed, downcast=False) for seed in self.seeds]
        back = ops.call(info.graph, *seeds, inputs_dict=info.inputs_dict(site))
        made = {c.fwd_tensor: tensor for c, tensor in zip(info.expected_outputs, back, strict=True)}
        return [*site.outputs[: len(values)], *(made[graph.inputs[i]] for i in places)]

    def in_repeat(self, ir: Any, graph: Any, tensors: list[Any], weights: np.random.Generator) -> list[Any]:
        """The results of the last of two trips."""
        started = [ops.init(t.shape, t.dtype) for t in graph.outputs]
        count = len(started)
        body = ir.create_graph(lambda *x: ops.call(graph, *x[count:]), *started, *tensors)
        return list(ops.repeat(body, 2, *started, *tensors))[:count]

    def in_branch(self, ir: Any, graph: Any, tensors: list[Any], weights: np.random.Generator) -> list[Any]:
        """The branch that is taken."""
        other = ir.create_graph(lambda *x: tuple(ops.init(t.shape, t.dtype) for t in graph.outputs), *tensors)
        taken = self.program.seed % 2 == 0
        branches = (graph, other) if taken else (other, graph)
        condition = popxl.variable(taken, popxl.bool)
        return list(ops.conditional_with_info(condition, *branches, tensors, tensors).outputs)


AROUND = {"call": Device.in_call, "repeat": Device.in_repeat, "branch": Device.in_branch}


def _resolved(name: str) -> Any:
    """The public op of a name."""
    module, _, op = name.rpartition(".")
    return getattr(importlib.import_module(f"ipuperf.{module}"), op)


def _filled(operands: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """The operands with tensors where there is None."""
    rest = iter(tensors)
    return [next(rest) if operand is None else operand for operand in operands]


def _plain(found: Any) -> np.ndarray:
    """Host data; 8-bit floats by PyTorch's types."""
    array = np.asarray(found)
    eighth = {getattr(popxl, name).as_numpy(): dtype for name, dtype in FORMATS.items()}
    if array.dtype in eighth:
        codes = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
        return codes.view(eighth[array.dtype]).float().numpy().reshape(array.shape)
    return array


# -- by PyTorch --------------------------------------------------------------------------------------------------------


def _compared(
    program: Program, case: Case, samples: list[list[np.ndarray]], got: list[list[np.ndarray]], seeds: list[np.ndarray]
) -> list[tuple[str, np.ndarray, torch.Tensor]]:
    """What is compared: its name, the value and the expected one."""
    tensors = [[_wide(array) for array in sample] for sample in samples]
    if case.across:
        rows = []
        for first in range(0, len(samples), program.replicas):
            replicas = tensors[first : first + program.replicas]
            rows += case.oracle(*(list(each) for each in zip(*replicas)), **program.arguments)
        return [(f"sample {i}", g[0], want) for i, (g, want) in enumerate(zip(got, rows, strict=True))]
    compared = []
    for number, (sample, found) in enumerate(zip(tensors, got, strict=True)):
        leaves = _leaves(program, sample) if seeds else []
        seen = ([_wide(g) for g in found],) if case.random else ()
        values = case.oracle(*seen, *sample, **program.arguments)
        values = (values,) if isinstance(values, torch.Tensor) else tuple(values)
        expected = [*values, *_gradients(values, leaves, seeds)]
        names = [f"result {i}" for i in range(len(values))] + [f"gradient {i}" for i in range(len(leaves))]
        compared += [(f"sample {number}, {n}", g, e) for n, g, e in zip(names, found, expected, strict=True)]
    return compared


def _wide(array: np.ndarray) -> torch.Tensor:
    """Float64, int64 or bool."""
    kinds = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}
    return torch.tensor(np.asarray(array).astype(kinds[array.dtype.kind]))


def _leaves(program: Program, sample: list[torch.Tensor]) -> list[torch.Tensor]:
    return [sample[i].requires_grad_() for i in _differentiable(program)]


def _gradients(
    values: Sequence[torch.Tensor], leaves: list[torch.Tensor], seeds: list[np.ndarray]
) -> list[torch.Tensor]:
    if not leaves:
        return []
    floating = [v for v in values if v.is_floating_point()]
    loss = sum((v * _wide(s)).sum() for v, s in zip(floating, seeds, strict=True))
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found)]


def _differences(what: str, got: np.ndarray, want: torch.Tensor, program: Program, case: Case) -> list[str]:
    expected = want.detach().numpy()
    if got.shape != expected.shape:
        return [f"{what}: shape {got.shape}, expected {expected.shape}"]
    if (got.dtype.kind == "f") != (expected.dtype.kind == "f") or (got.dtype.kind == "b") != (
        expected.dtype.kind == "b"
    ):
        return [f"{what}: dtype {got.dtype}, expected one of kind {expected.dtype}"]
    limit = case.rounding * TOLERANCE.get("float16" if got.dtype == np.float16 else program.dtype, 2e-5)
    scale = (
        max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0))) if expected.dtype.kind == "f" else 0.0
    )
    if np.allclose(
        got.astype(expected.dtype), expected, rtol=limit * (scale > 0), atol=limit * scale, equal_nan=not case.random
    ):
        return []
    return [f"{what}: got {got.reshape(-1)[:4]}, expected {expected.reshape(-1)[:4]}"]


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """In the main graph, of arrays, and with all operands tensors, where the failure stays."""
    for field, value in (("around", "main"), ("form", "array"), ("feed", "dict"), ("hosted", []), ("transfers", 1)):
        smaller = Program(**{**vars(program), field: value})
        if field == "around" and program.replicas > 1:
            continue
        if field == "around":
            smaller.transfers = 1
        if fails(smaller):
            program = smaller
    return program
