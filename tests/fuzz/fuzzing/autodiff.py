"""Random differentiable PopXL graphs: value and gradients against PyTorch, also through calls."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf.popxl import ops
from ipuperf.popxl.transforms import autodiff

from .invariants import trace_problems
from .outcome import Outcome
from .popxl.scope import broadcasts, recent
from .stored import Stored

Node = list[Any]
"""``[op, [operand, ...], {attributes}]``; operands count the inputs first, then the nodes."""


@dataclass
class Program(Stored):
    """A graph from ``shapes`` to its last tensor. ``around``: how it is reached: directly, by a ``call`` within the
    differentiated graph, by three ``calls`` after each other (a ``repeat`` has no gradient), or in a ``branch`` of a
    conditional."""

    seed: int
    shapes: list[list[int]]
    nodes: list[Node]
    around: str
    dtype: str

    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)


class Tied(Exception):
    """An extreme is reached more than once: PopART's gradient is then another (documented) than PyTorch's."""


Pair = tuple[Callable[..., Any], Callable[..., Any]]
UNARY: dict[str, Pair] = {
    "tanh": (ops.tanh, torch.tanh),
    "relu": (ops.relu, torch.relu),
    "sin": (ops.sin, torch.sin),
    "cos": (ops.cos, torch.cos),
    "gelu": (ops.gelu, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "geluerf": (ops.geluerf, torch.nn.functional.gelu),
    "negate": (ops.negate, torch.neg),
    "abs": (ops.abs, torch.abs),
    "identity": (ops.identity, lambda x: x),
    "detach": (ops.detach, torch.detach),
    "exp": (lambda x: ops.exp(ops.clip(x, -2, 2)), lambda x: torch.exp(x.clamp(-2, 2))),
    "sqrt": (lambda x: ops.sqrt(x * x + 1.0), lambda x: torch.sqrt(x * x + 1)),
    "log": (lambda x: ops.log(x * x + 1.0), lambda x: torch.log(x * x + 1)),
    "log2": (lambda x: ops.log2(x * x + 1.0), lambda x: torch.log2(x * x + 1)),
    "clip": (lambda x: ops.clip(x, -1, 1), lambda x: x.clamp(-1, 1)),
    "where": (lambda x: ops.where(ops.greater(x, _like(x, 0.1)), x, x * x), lambda x: torch.where(x > 0.1, x, x * x)),
    "double": (lambda x: x + x, lambda x: x + x),
    "number": (lambda x: 1.5 - x * 0.5, lambda x: 1.5 - x * 0.5),
}
BINARY: dict[str, Pair] = {
    "add": (ops.add, torch.add),
    "sub": (ops.sub, torch.sub),
    "mul": (ops.mul, torch.mul),
    "div": (lambda x, y: ops.div(x, y * y + 1.0), lambda x, y: x / (y * y + 1)),
    "maximum": (ops.maximum, lambda x, y: _untied(torch.maximum(x, y), x, y)),
}
REDUCE: dict[str, Pair] = {
    "sum": (ops.sum, torch.sum),
    "mean": (ops.mean, torch.mean),
    "max": (ops.max, lambda x, d, k: _reached_once(x, torch.amax(x, d, k), torch.amax(x, d, True), d)),
    "min": (ops.min, lambda x, d, k: _reached_once(x, torch.amin(x, d, k), torch.amin(x, d, True), d)),
    "l1": (ops.l1, lambda x, d, k: x.abs().sum(d, k)),
    "l2": (ops.l2, lambda x, d, k: (x * x).sum(d, k).sqrt()),
    "sumsquare": (ops.sumsquare, lambda x, d, k: (x * x).sum(d, k)),
}


def _like(x: Any, value: float) -> Any:
    return popxl.constant(value, x.dtype)


def _untied(found: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if bool((x == y).any()):
        raise Tied
    return found


def _reached_once(x: torch.Tensor, found: torch.Tensor, kept: torch.Tensor, axes: Any) -> torch.Tensor:
    if bool(((x == kept).sum(axes) > 1).any()):
        raise Tied
    return found


def draw(r: random.Random) -> Program:
    """A random graph of 3 to 20 nodes."""
    shapes = [r.choice([[3, 4], [4, 3], [4, 4], [1, 4], [4], [1], [], [2, 3, 4]]) for _ in range(r.randint(1, 3))]
    known: list[tuple[int, ...]] = [tuple(s) for s in shapes]
    nodes: list[Node] = []
    count = r.randint(3, 20)
    for _ in range(60):
        drawn = r.choice(DRAWS)(r, known)
        if drawn is not None and len(nodes) < count:
            nodes.append(drawn[0])
            known.append(drawn[1])
    around = r.choice(["nothing", "nothing", "call", "calls", "branch"])
    return Program(r.randrange(1 << 20), shapes, nodes, around, r.choice(["float32", "float32", "float64"]))


Drawn = tuple[Node, tuple[int, ...]] | None
Known = list[tuple[int, ...]]


def _some(r: random.Random, known: Known, wanted: Callable[[tuple[int, ...]], bool] = lambda s: True) -> int | None:
    """A tensor that fits; recent ones are likelier."""
    return recent(r, [i for i, s in enumerate(known) if wanted(s)])


def _unary(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known)
    return None if i is None else ([r.choice(list(UNARY)), [i], {}], known[i])


def _binary(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known)
    j = None if i is None else _some(r, known, lambda s: broadcasts(s, known[i]) is not None)
    if i is None or j is None:
        return None
    return [r.choice([*BINARY, "add", "sub", "mul"]), r.sample([i, j], 2), {}], np.broadcast_shapes(known[i], known[j])


def _matmul(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known, lambda s: len(s) >= 2)
    j = None if i is None else _some(r, known, lambda s: len(s) >= 2 and s[-2] == known[i][-1])
    if i is None or j is None:
        return None
    try:
        shape = np.matmul(np.empty(known[i], np.int8), np.empty(known[j], np.int8)).shape
    except ValueError:
        return None
    return ["matmul", [i, j], {}], shape


def _reduce(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known, lambda s: bool(s))
    if i is None:
        return None
    axes = sorted(r.sample(range(len(known[i])), r.randint(1, len(known[i]))))
    keep = r.random() < 0.5
    shape = np.sum(np.zeros(known[i]), axis=tuple(axes), keepdims=keep).shape
    return [r.choice([*REDUCE, "sum", "mean", "l2"]), [i], {"axes": axes, "keep": keep}], shape


def _reshaped(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known)
    if i is None:
        return None
    n = int(np.prod(known[i], dtype=int))
    shape = r.choice([(n,), (n, 1), (1, n), *([(2, n // 2)] if n % 2 == 0 else [])])
    return ["reshape", [i], {"shape": list(shape)}], shape


def _transposed(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known, lambda s: len(s) > 1)
    if i is None:
        return None
    order = r.sample(range(len(known[i])), len(known[i]))
    return ["transpose", [i], {"order": order}], tuple(known[i][a] for a in order)


def _cut(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known, lambda s: bool(s) and s[0] > 1)
    if i is None:
        return None
    start, step = r.randrange(known[i][0]), r.choice([1, 2])
    return ["slice", [i], {"start": start, "step": step}], (len(range(start, known[i][0], step)), *known[i][1:])


def _joined(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known, lambda s: bool(s) and s[0] < 20)
    j = None if i is None else _some(r, known, lambda s: len(s) == len(known[i]) and s[1:] == known[i][1:])
    if i is None or j is None:
        return None
    return ["concat", [i, j], {}], (known[i][0] + known[j][0], *known[i][1:])


def _soft(r: random.Random, known: Known) -> Drawn:
    i = _some(r, known, lambda s: bool(s))
    return None if i is None else (["softmax", [i], {}], known[i])


DRAWS = (_unary, _unary, _unary, _binary, _binary, _matmul, _reduce, _reshaped, _transposed, _cut, _joined, _soft)


def _evaluate(program: Program, values: list[Any], which: int) -> list[Any]:
    """All tensors, by PopXL (``which`` 0) or PyTorch (1)."""
    values = list(values)
    for op, operands, attributes in program.nodes:
        values.append(_node(op, [values[i] for i in operands], attributes, which))
    return values


def _node(op: str, x: list[Any], a: dict[str, Any], which: int) -> Any:
    if op in UNARY or op in BINARY:
        return (UNARY.get(op) or BINARY[op])[which](*x)
    if op in REDUCE:
        return REDUCE[op][which](x[0], a["axes"], a["keep"])
    return (_popxl_node if which == 0 else _torch_node)(op, x, a)


def _popxl_node(op: str, x: list[Any], a: dict[str, Any]) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "matmul": lambda: ops.matmul(*x),
        "reshape": lambda: ops.reshape(x[0], a["shape"]),
        "transpose": lambda: ops.transpose(x[0], a["order"]),
        "slice": lambda: x[0][a["start"] :: a["step"]],
        "concat": lambda: ops.concat(x, 0),
        "softmax": lambda: ops.softmax(x[0], -1),
    }
    return made[op]()


def _torch_node(op: str, x: list[Any], a: dict[str, Any]) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "matmul": lambda: torch.matmul(*x),
        "reshape": lambda: torch.reshape(x[0], a["shape"]),
        "transpose": lambda: torch.permute(x[0], a["order"]),
        "slice": lambda: x[0][a["start"] :: a["step"]],
        "concat": lambda: torch.cat(x, 0),
        "softmax": lambda: torch.softmax(x[0], -1),
    }
    return made[op]()


def _result(program: Program, values: list[Any], which: int) -> Any:
    """The last tensor, plus something of every input and of the largest tensors, so that all have gradients."""
    found = _evaluate(program, values, which)
    mean = ops.mean if which == 0 else torch.mean
    result = found[-1]
    for value in found[:-1]:
        result = result + mean(value) * 0.25
    return result


def _carried(program: Program, values: list[Any], which: int) -> Any:
    """The first input after one trip: itself, changed by the mean of the result."""
    mean, tanh = (ops.mean, ops.tanh) if which == 0 else (torch.mean, torch.tanh)
    return tanh(values[0] * 0.5 + mean(_result(program, values, which)) * 0.1)


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of value and gradients; nothing is compared where an extreme is tied."""
    rng = np.random.default_rng(program.seed)
    values = [np.asarray(rng.normal(size=s)).astype(program.dtype) for s in program.shapes]
    try:
        want, seed = _by_torch(program, values, rng)
    except Tied:
        return Outcome(refused="a tied extreme")
    got, session = _by_popxl(program, values, seed)
    outcome = Outcome(compared=sum(w.size for w in want))
    for position, (a, b) in enumerate(zip(got, want, strict=True)):
        what = "value" if position == 0 else f"gradient {position - 1}"
        outcome.problems += _different(what, a, b, program.dtype)
    if trace:
        outcome.problems += trace_problems(session.executable)
    return outcome


def _different(what: str, got: np.ndarray, want: np.ndarray, dtype: str) -> list[str]:
    if got.shape != want.shape:
        return [f"{what}: shape {got.shape}, expected {want.shape}"]
    tolerance = 1e-3 if dtype == "float32" else 1e-6
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    if not np.isfinite(want).all() or scale > 1e6 or np.allclose(got, want, rtol=tolerance, atol=tolerance * scale):
        return []
    return [f"{what}: got {got.reshape(-1)[:4]}, expected {want.reshape(-1)[:4]}"]


def _by_torch(
    program: Program, values: list[np.ndarray], rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    leaves = [torch.tensor(v, requires_grad=True) for v in values]
    tensors: list[torch.Tensor] = list(leaves)
    if program.around == "calls":
        for _ in range(3):
            tensors[0] = _carried(program, tensors, 1)
        result = tensors[0]
    else:
        result = _result(program, tensors, 1) * (2 if program.around == "call" else 1)
        if program.around == "branch":
            result = _either(result, 1, taken=program.seed % 2 == 0)
    seed = np.asarray(rng.normal(size=tuple(result.shape))).astype(program.dtype)
    result.backward(torch.tensor(seed))
    gradients = [np.zeros(v.shape, v.dtype) if t.grad is None else t.grad.numpy() for t, v in zip(leaves, values)]
    return [result.detach().numpy(), *gradients], seed


def _by_popxl(program: Program, values: list[np.ndarray], seed: np.ndarray) -> tuple[list[np.ndarray], Any]:
    dtype = getattr(popxl, program.dtype)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence(True):
        variables = [popxl.variable(v, dtype, f"v{i}") for i, v in enumerate(values)]
        graph = _graph(program, ir, variables)
        gradient = autodiff(graph)
        site = ops.call_with_info(graph, *variables)
        back = ops.call(gradient.graph, popxl.constant(seed, dtype), inputs_dict=gradient.inputs_dict(site))
        places = [graph.inputs.index(c.fwd_tensor) for c in gradient.expected_outputs]
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in (site.outputs[0], *back)]
        for stream, tensor in zip(streams, (site.outputs[0], *back)):
            ops.host_store(stream, tensor)
    session = popxl.Session(ir, "ipu_hw")
    with session:
        found = session.run()
    got = [np.asarray(found[s]) for s in streams]
    gradients = dict(zip(places, got[1:], strict=True))
    return [got[0], *(gradients[i] for i in range(len(values)))], session


def _graph(program: Program, ir: Any, variables: list[Any]) -> Any:
    """The graph to differentiate, in what stands around it."""
    if program.around == "nothing":
        return ir.create_graph(lambda *x: _result(program, list(x), 0), *variables)
    if program.around == "call":
        inner = ir.create_graph(lambda *x: _result(program, list(x), 0), *variables)
        return ir.create_graph(lambda *x: ops.call(inner, *x)[0] * 2.0, *variables)
    if program.around == "branch":
        return ir.create_graph(lambda *x: _branched(program, ir, x), *variables)
    trip = ir.create_graph(lambda *x: _carried(program, list(x), 0), *variables)
    return ir.create_graph(lambda first, *rest: _thrice(trip, first, rest), *variables)


def _either(result: Any, which: int, *, taken: bool) -> Any:
    """What a branch makes of the result."""
    return result * 2.0 if taken else (ops.tanh if which == 0 else torch.tanh)(result)


def _branched(program: Program, ir: Any, x: Sequence[Any]) -> Any:
    """A conditional whose branches make different things of the result."""
    branches = [
        ir.create_graph(lambda *t, taken=taken: _either(_result(program, list(t), 0), 0, taken=taken), *x)
        for taken in (True, False)
    ]
    condition = popxl.constant(program.seed % 2 == 0, popxl.bool)
    return ops.conditional(condition, *branches, x, x)[0]


def _thrice(trip: Any, first: Any, rest: Sequence[Any]) -> Any:
    for _ in range(3):
        (first,) = ops.call(trip, first, *rest)
    return first
