"""Random modules written as statements: views, changes in place, buffers, mixed types, indices; PyTorch as the oracle.

A program is text, as a user would write it: each line of ``forward`` makes a tensor or changes one. Lines are tried on
PyTorch as they are drawn; those that it refuses, or that give huge numbers, are drawn again. The loss is a weighted sum
of what the last lines made. Losses, results, weights and buffers are compared after two steps of SGD.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import ipuperf.poptorch as poptorch

from ..invariants import trace_problems
from ..outcome import Outcome
from ..stored import Stored

STEPS, RATE = 2, 0.25
TOLERANCE = 1e-3
JITTER, JITTERED_RUNS, EXPLAINED = 2.0**-22, 5, 6.0
INPUTS = {"x": (3, 4), "y": (2, 3, 4), "n": (3, 4)}
"""What ``forward`` takes: two tensors of float32 and one of whole numbers from 0 to 2."""
STATE = {"p": (3, 4), "q": (4,), "b": (3, 4), "c": (4,)}
"""Parameters ``p`` and ``q``, buffers ``b`` and ``c``."""
LARGEST = 20.0

UNARY = ("relu", "tanh", "sigmoid", "abs", "neg", "square", "sin", "exp", "floor", "sign", "softmax(-1)", "cumsum(0)")
BINARY = (
    "{a} + {b}",
    "{a} - {b}",
    "{a} * {b}",
    "{a} / ({b} * {b} + 1)",
    "torch.maximum({a}, {b})",
    "{a} % ({b} + 4.5)",
    "torch.where({b} > 0.2, {a}, {b})",
    "torch.atan2({a}, {b}.abs() + 1)",
    "{a}.masked_fill({b} > 0, 0.5)",
)
REDUCING = ("sum", "mean", "amax", "amin", "logsumexp", "std", "argmax", "prod", "norm")
VIEWS = (
    "{a}[0]",
    "{a}[..., 1:]",
    "{a}[-1:]",
    "{a}[::2]",
    "{a}.t()",
    "{a}.transpose(0, -1)",
    "{a}.reshape(-1)",
    "{a}.unsqueeze(0)",
    "{a}.flatten()",
    "{a}.view(-1, 2)",
    "{a}.unbind(0)[-1]",
    "{a}.chunk(2, -1)[0]",
    "{a}.diagonal()",
    "{a}.detach()",
    "{a}.clone()",
    "{a}.split(2, -1)[-1]",
)
MAKING = (
    "torch.cat([{a}, {a} * 2], -1)",
    "torch.stack([{a}, {a}])",
    "{a}[[0, -1]]",
    "{a}.gather(-1, self.c.argsort()[:2].expand(*{a}.shape[:-1], 2))",
    "{a}.index_select(0, torch.tensor([1, 0]))",
    "{a}.roll(1, 0)",
    "{a}.half().float()",
    "{a}.flip(-1)",
    "nn.functional.pad({a}, (1, 0))",
    "{a} @ self.p.t()",
    "nn.functional.layer_norm({a}, {a}.shape[-1:])",
    "torch.einsum('...i,...i->...', {a}.float(), {a}.float())",
    "torch.zeros(3, 4) + {a}",
    "self.{s} * 1",
    "{a}.sort(-1)[0]",
    "(n == 1).float()",
    "n % 2",
    "{a}.topk(1)[0]",
    "torch.zeros_like({a})",
    "self.{s}",
)
CHANGES = (
    "{a}.add_({b})",
    "{a}.mul_(0.5)",
    "{a} *= {b}",
    "{a}.copy_({b})",
    "{a}[0] = {b}",
    "{a}[..., 1] = 0.5",
    "{a}[-1:] += 1",
    "{a}[{a} > 0.3] = 0.25",
    "{a}.clamp_(-1, 1)",
    "{a}.masked_fill_({a} < 0, 0.125)",
    "{a}[..., :2].mul_(2)",
    "{a}.zero_()",
    "{a}.data.add_(0.5)",
    "{a}.detach().mul_(0.5)",
    "nn.functional.relu({a}, inplace=True)",
    "{a}.index_fill_(0, n[0, :1], 1.5)",
    "self.b.add_({b})",
    "self.c[1:].copy_(self.c[:-1].clone())",
    "self.b[0] *= 0.5",
    "self.c.lerp_({b}, 0.25)",
)
"""Changes in place; what starts with ``self`` changes a buffer."""


@dataclass
class Program(Stored):
    """The lines of ``forward``, the tensors that it returns, and the seed of all numbers."""

    seed: int
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def size(self) -> int:
        """Number of lines."""
        return len(self.lines)

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"return {', '.join(self.results)}"])


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(r: random.Random) -> Program:
    """A random module."""
    program, wanted = Program(r.randrange(1 << 20)), r.randint(4, 12)
    for _ in range(20 * wanted):
        if program.size() == wanted:
            break
        longer = Program(program.seed, [*program.lines, _line(r, program)])
        longer.results = _made(longer)[-4:]
        if _is_possible(longer):
            program = longer
    return program


def _made(program: Program) -> list[str]:
    """Names of the tensors that the lines make."""
    return [line.partition(" = ")[0] for line in program.lines if line.startswith("v") and line[1:2].isdigit() and
            "[" not in line.partition(" = ")[0] and " = " in line]  # fmt: skip


def _line(r: random.Random, program: Program) -> str:
    made = _made(program)
    names = [*made[-4:], *made, "x", "y"]
    a, b = r.choice(names), r.choice([*names, "self.b", "self.q", "0.75"])
    kind = r.choice(("unary", "binary", "reduce", "view", "view", "make", "change", "change", "quiet"))
    values = {"a": a, "b": b, "s": r.choice(list(STATE))}
    if kind in ("change", "quiet"):
        changed = r.choice(CHANGES).format(**{**values, "a": r.choice(made or ["x"])})
        return changed if kind == "change" else f"with torch.no_grad(): {changed}"
    if kind == "unary":
        chosen = r.choice(UNARY)
        made_by = f"{a}.{chosen}" + ("" if chosen.endswith(")") else "()")
    elif kind == "reduce":
        made_by = f"{a}.{r.choice(REDUCING)}(dim={r.choice([0, -1])}, keepdim={r.random() < 0.5})"
    else:
        made_by = r.choice({"binary": BINARY, "view": VIEWS, "make": MAKING}[kind]).format(**values)
    return f"v{len(program.lines)} = {made_by}"


def _is_possible(program: Program) -> bool:
    """Whether PyTorch runs two steps of it with moderate numbers, the weights among them."""
    try:
        values = _by_torch(program, _module(program))
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NameError):
        return False
    return all(v.numel() <= 400 and (v.double().abs() <= LARGEST).all() for v in values.values())


# -- the two trainings -------------------------------------------------------------------------------------------------

Values = dict[str, torch.Tensor]


def _module(program: Program) -> nn.Module:
    """The module as a class of its own, made from its text."""
    body = "\n".join(f"        {line}" for line in program.lines)
    head, results = "class Module(nn.Module):\n    def forward(self, x, y, n):", ", ".join(program.results)
    text = f"{head}\n{body}\n        return [{results}]\n"
    names: dict[str, Any] = {"torch": torch, "nn": nn, "__name__": "statements"}
    exec(compile(text, "<statements>", "exec"), names)
    module, numbers = names["Module"](), torch.Generator().manual_seed(program.seed)
    for name, shape in STATE.items():
        value = torch.randn(shape, generator=numbers)
        if name in "pq":
            module.register_parameter(name, nn.Parameter(value))
        else:
            module.register_buffer(name, value)
    return module


def _inputs(program: Program) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(program.seed + 1)
    drawn = [torch.randn(INPUTS[name], generator=numbers) for name in "xy"]
    return [*drawn, torch.randint(0, 3, INPUTS["n"], generator=numbers)]


class Trained(nn.Module):
    """A module with the weighted sum of its results, and of its parameters', as the loss."""

    def __init__(self, module: nn.Module, mark: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.module, self.mark = module, mark

    def forward(self, *inputs: torch.Tensor) -> Any:
        results = self.module(*inputs)
        loss = self.module.p.sum() * 0.01 + self.module.q.sum() * 0.01
        for result in results:
            if result.is_floating_point() and result.numel():
                loss = loss + (result * torch.linspace(0.3, 1.1, result.numel()).reshape(result.shape)).mean()
        return self.mark(loss), [result.clone() for result in results]


def _values(step: int, loss: torch.Tensor, results: list[torch.Tensor]) -> Values:
    named = {f"step {step}, result {i}": result.detach() for i, result in enumerate(results)}
    return {f"step {step}, loss": loss.detach(), **named}


def _by_torch(program: Program, module: nn.Module) -> Values:
    model, found = Trained(module, lambda loss: loss), Values()
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for step in range(STEPS):
        optimiser.zero_grad()
        # What backward reads is what forward computed: without copies a later change of `.data` reaches it in silence.
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.detach().clone(), lambda kept: kept):
            loss, results = model(*_inputs(program))
        found |= _values(step, loss, results)
        loss.backward()
        optimiser.step()
        for buffer in module.buffers():  # a buffer to which a parameter was added would bring last step's gradient
            buffer.detach_()
    return found | {name: value.detach() for name, value in module.state_dict().items()}


def _by_poptorch(program: Program, module: nn.Module, trace: bool, outcome: Outcome) -> Values:
    model = Trained(module, lambda loss: poptorch.identity_loss(loss, reduction="none"))
    options, found = poptorch.Options().showCompilationProgressBar(False), Values()
    trained = poptorch.trainingModel(model, options, optimizer=torch.optim.SGD(module.parameters(), lr=RATE))
    for step in range(STEPS):
        found |= _values(step, *trained(*_inputs(program)))
    found |= {name: value.detach().clone() for name, value in module.state_dict().items()}
    if trace:
        outcome.problems += trace_problems(trained.compiled_model.executable)
    trained.destroy()
    return found


# -- comparison --------------------------------------------------------------------------------------------------------


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of losses, results, weights and buffers."""
    outcome = Outcome()
    want = _by_torch(program, _module(program))
    try:
        got = _by_poptorch(program, _module(program), trace, outcome)
    except poptorch.UnsupportedError as error:
        if "which the optimiser updates too" not in str(error):
            raise
        outcome.refused = str(error)  # a line changes a parameter by another name
        return outcome
    outcome.compared = sum(value.numel() for value in want.values())
    wrong = {name: _difference(got[name], value) for name, value in want.items()}
    if any(wrong.values()):
        moved = _moved(program, want)
        for name, far in wrong.items():
            if far > EXPLAINED * moved[name]:
                outcome.problems.append(f"{name}: differs by {far:.2g}, of PyTorch's own jitter {moved[name]:.2g}")
            elif far:
                outcome.ill_conditioned = f"{name}: {far:.2g}"
    return outcome


def _difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference that is no rounding; infinite where the shapes differ."""
    if got.shape != want.shape:
        return float("inf")
    a, b = got.double(), want.double()
    limit = TOLERANCE * max(1.0, float(b.abs().max()) if b.numel() else 0.0)
    far = float((a - b).abs().nan_to_num(float("inf")).max()) if b.numel() else 0.0
    return far if far > limit else 0.0


def _moved(program: Program, want: Values) -> dict[str, float]:
    """How far PyTorch's own values move when each start weight does by :data:`JITTER`."""
    moved = dict.fromkeys(want, 0.0)
    for seed in range(JITTERED_RUNS):
        module, signs = copy.deepcopy(_module(program)), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in (*module.parameters(), *module.buffers()):
                value *= 1 + JITTER * (2 * torch.randint(0, 2, value.shape, generator=signs) - 1)
        for name, value in _by_torch(program, module).items():
            if value.numel():
                moved[name] = max(moved[name], float((value.double() - want[name].double()).abs().max()))
    return moved


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Without the lines that the failure does not need."""
    for position in range(program.size() - 1, -1, -1):
        smaller = Program(program.seed, program.lines[:position] + program.lines[position + 1 :])
        smaller.results = [name for name in program.results if name in _made(smaller)]
        if _is_possible(smaller) and fails(smaller):
            program = smaller
    return program
