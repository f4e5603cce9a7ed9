"""A few of PyTorch's operations at a time, with random operands and arguments, through PopTorch; PyTorch says what each
gives, and what its gradient is.

Floating-point operands are parameters: after one step of SGD they tell their gradients. In float16, PyTorch computes in
float32 from the same numbers.
"""

import contextlib
import io
import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import ipuperf.poptorch as poptorch

from ..invariants import trace_problems
from ..names import used_by
from ..outcome import Outcome
from ..stored import Stored
from .cases import CASES, ROLES, WHOLE

TOGETHER = 8
"""Operations in one program: PyTorch takes longer for an export than for what is in it."""
TOLERANCE = {False: 1e-3, True: 2e-2}
RATE = 0.5


@dataclass
class Program(Stored):
    """Calls: each is ``[name, text, operands]``, see :mod:`.cases`. ``options`` are names of :data:`OPTIONS`."""

    seed: int
    half: bool
    calls: list[list[Any]]
    training: bool = True
    options: list[str] = field(default_factory=list)

    def size(self) -> int:
        """Number of calls."""
        return len(self.calls)


_PLACE = poptorch.TensorLocationSettings().useOnChipStorage(True)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "deviceIterations": (1,),
    "replicationFactor": (1,),
    "outputMode": (poptorch.OutputMode.All,),
    "setExecutionStrategy": (poptorch.ShardedExecution(),),
    "autoRoundNumIPUs": (True,),
    "setAvailableMemoryProportion": ({"IPU0": 0.4},),
    "syncPattern": (poptorch.SyncPattern.Full,),
    "randomSeed": (7,),
    "broadcastBuffers": (True,),
    "updatableNamedBuffers": ([],),
    "modelName": ("model",),
    "connectionType": (poptorch.ConnectionType.Always,),
    "useOfflineIpuTarget": (2,),
    "useIpuModel": (False,),
    "useIpuId": (0,),
    "enableExecutableCaching": (None,),
    "enableStableNorm": (True,),
    "enableSyntheticData": (False,),
    "logCycleCount": (False,),
    "relaxOptimizerAttributesChecks": (True,),
    "sourceLocationExcludes": ([],),
    "appendToLocationExcludes": ("nowhere",),
    "disableModuleNamescope": (),
    "clone": (),
    "maxRepeatLogs": (4,),
    "loadFromFile": (os.devnull,),
    "showCompilationProgressBar": (False,),
    "inputReplicaGrouping": (1, poptorch.CommGroupType.Consecutive),
    "Training.gradientAccumulation": (1,),
    "Training.accumulationAndReplicationReductionType": (poptorch.ReductionType.Sum,),
    "Training.setMeanAccumulationAndReplicationReductionStrategy": (poptorch.MeanReductionStrategy.Post,),
    "Training.setAutomaticLossScaling": (False,),
    "Training.setConvolutionDithering": (True,),
    "Precision.halfFloatCasting": (poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat,),
    "Precision.runningStatisticsAlwaysFloat": (True,),
    "Precision.enableFloatingPointExceptions": (False,),
    "Precision.enableStochasticRounding": (False,),
    "Precision.setPartialsType": (torch.float32,),
    "TensorLocations.numIOTiles": (32,),
    "TensorLocations.setActivationLocation": (_PLACE,),
    "TensorLocations.setWeightLocation": (_PLACE,),
    "TensorLocations.setOptimizerLocation": (_PLACE,),
    "TensorLocations.setAccumulatorLocation": (_PLACE,),
    "Distributed.disable": (),
    "Distributed.setEnvVarNames": ("A_NUMBER", "ANOTHER"),
    "Distributed.configureProcessId": (0, 1),
}
"""Options that change no value here, with their arguments."""


def drawn_names() -> set[str]:
    """The operations of the table, the options, and what the programs use besides."""
    return {*CASES, *(f"poptorch.Options.{name}" for name in OPTIONS), *used_by(sys.modules[__name__])}


def draw(r: random.Random) -> Program:
    """Random calls that PyTorch can do."""
    program = Program(r.randrange(1 << 20), r.random() < 0.25, [], r.random() < 0.75)
    program.options = r.sample(list(OPTIONS), r.choice([0, 0, 1, 2, 3]))
    half, training = program.half, program.training
    names = [n for n, case in CASES.items() if case.half >= half and case.training >= training]
    while program.size() < TOGETHER:
        name = r.choice(names)
        call = [name, *CASES[name].draw(r)]
        if _is_possible(replace(program, half=False, calls=[call])):
            program.calls.append(call)
    return program


def _is_possible(program: Program) -> bool:
    """Whether PyTorch does it, and gives numbers."""
    try:
        results = Calls(program, plain=True)()
    except (RuntimeError, ValueError, IndexError):
        return False
    return all(value.numel() and value.double().abs().max() < 1e3 for value in results[0])


class Calls(nn.Module):
    """The calls of a program, and their operands."""

    def __init__(self, program: Program, *, plain: bool = False) -> None:
        super().__init__()
        torch.manual_seed(program.seed)
        numbers = torch.Generator().manual_seed(program.seed)
        self.names = [name for name, *_ in program.calls]
        self.texts = [(plain and CASES[name].plain) or text for name, text, _ in program.calls]
        self.called, self.operands = nn.ModuleList(), []
        names = {"torch": torch, "nn": nn, "F": nn.functional, "poptorch": poptorch, "within": _within}
        names["on_host"] = poptorch.CPU(torch.sin, "sine")
        for number, (_, text, operands) in enumerate(program.calls):
            self.called.append(eval(text, names) if text.startswith("nn.") else nn.Identity())
            self.operands.append([f"x{number}_{i}" for i in range(len(operands))])
            for key, (role, shape) in zip(self.operands[-1], operands):
                self._hold(key, ROLES[role](numbers, *shape), role not in WHOLE and role != "sign")
        self.functions = [
            None if text.startswith("nn.") else eval(f"lambda a, b=None, c=None: {text}", names) for text in self.texts
        ]
        if program.half:
            self.half()

    def _hold(self, key: str, value: torch.Tensor, trained: bool) -> None:
        if trained:
            self.register_parameter(key, nn.Parameter(value))
        else:
            self.register_buffer(key, value)

    def forward(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The results of all calls, and a weighted sum of them."""
        results: list[torch.Tensor] = []
        total = sum(p.sum() * 0.0 for p in self.parameters()) + 0.0
        for name, function, module, keys in zip(self.names, self.functions, self.called, self.operands):
            found = (function or module)(*(getattr(self, key) for key in keys))
            for value in _flat(found):
                results.append(value.clone())
                if value.is_floating_point() and not CASES[name].random:
                    weights = torch.linspace(0.3, 1.1, value.numel()).reshape(value.shape)
                    total = total + (value * weights.to(value.dtype)).sum()
        return results, torch.as_tensor(total)


def _within(context: Any, function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> torch.Tensor:
    with context:
        return function(*operands)


def _flat(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [value for part in found for value in _flat(part)]


class Marked(nn.Module):
    """The calls with PopTorch's mark of a loss."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    def forward(self) -> Any:
        results, total = self.calls()
        return poptorch.identity_loss(total, reduction="none") if self.training else total, results


def check(program: Program, *, trace: bool = False) -> Outcome:
    """Differences of results and of operands after a step."""
    outcome = Outcome()
    want = _by_torch(program)
    got = _by_poptorch(program, trace, outcome)
    for name, expected in want.items():
        outcome.compared += expected.numel()
        outcome.problems += _difference(name, got[name], expected, program.half, name.startswith("random"))
    return outcome


def _named(program: Program, calls: Calls, results: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Results by call, and what the operands are after the step."""
    counts = [len(_flat(found)) for found in _shapes(program)]
    owners = [number for number, count in enumerate(counts) for _ in range(count)]
    named = {}
    for position, (owner, value) in enumerate(zip(owners, results, strict=True)):
        name, text, _ = program.calls[owner]
        kind = "random " if CASES[name].random else ""
        named[f"{kind}{name}: {text}, result {position - owners.index(owner)}"] = value.detach()
    for key, value in calls.state_dict().items():
        number = int(key.split(".")[1] if key.startswith("called") else key[1:].partition("_")[0])
        named[f"{program.calls[number][1]}: {key} after the step"] = value.detach()
    return named


def _shapes(program: Program) -> list[Any]:
    """What each call gives, by PyTorch."""
    found = []
    for call in program.calls:
        found.append(Calls(replace(program, half=False, calls=[call]), plain=True)()[0])
    return found


def _by_torch(program: Program) -> dict[str, torch.Tensor]:
    calls = Calls(program, plain=True).float()
    results, total = calls()
    optimiser = torch.optim.SGD(calls.parameters(), lr=RATE)
    if total.requires_grad and program.training:
        total.backward()
        optimiser.step()
    return _named(program, calls, results)


def _by_poptorch(program: Program, trace: bool, outcome: Outcome) -> dict[str, torch.Tensor]:
    calls = Calls(program)
    calls.register_parameter("spare", nn.Parameter(torch.zeros(1)))
    options = poptorch.Options().showCompilationProgressBar(False)
    for name in program.options:
        *group, option = name.split(".")
        getattr(getattr(options, group[0]) if group else options, option)(*OPTIONS[name])
    if "useOfflineIpuTarget" in program.options:  # which leaves the model without a device
        options.connectionType(poptorch.ConnectionType.Always)
    if program.training:
        optimiser = poptorch.optim.SGD(calls.parameters(), lr=RATE)
        model = poptorch.trainingModel(Marked(calls), options, optimizer=optimiser)
    else:
        model = poptorch.inferenceModel(Marked(calls).eval(), options)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        _, results = model()
    if program.training:
        model.copyWeightsToHost()
    if trace:
        outcome.problems += trace_problems(model.compiled_model.executable)
    model.destroy()
    calls.register_parameter("spare", None)
    return _named(program, calls, results)


def _difference(name: str, got: torch.Tensor, want: torch.Tensor, half: bool, shape_only: bool) -> list[str]:
    if got.numel() != want.numel() or (got.dim() and got.shape != want.shape):
        return [f"{name}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"]
    if got.is_floating_point() != want.is_floating_point():
        return [f"{name}: {got.dtype}, expected {want.dtype}"]
    if shape_only:
        return [] if bool(got.double().isfinite().all()) else [f"{name}: not finite"]
    a, b = got.double().reshape(want.shape), want.double()
    limit = TOLERANCE[half] if want.is_floating_point() else 0.0
    if torch.allclose(a, b, rtol=limit, atol=limit * max(1.0, float(b.abs().max()))):
        return []
    return [f"{name}: got {a.reshape(-1)[:3].tolist()}, expected {b.reshape(-1)[:3].tolist()}"]


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Without the calls that the failure does not need."""
    for position in range(program.size() - 1, -1, -1):
        smaller = replace(program, calls=program.calls[:position] + program.calls[position + 1 :])
        if smaller.calls and fails(smaller):
            program = smaller
    bare = replace(program, options=[])
    return bare if fails(bare) else program
