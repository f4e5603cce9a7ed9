"""Levers that divide the same global batch otherwise: into other micro-batches, or over replicas and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from ipuperf.runtime.model_revision import ModelRequest
from ipuperf.runtime.settings import AUTO

from .change import ProgramChange
from .rerun import Rerun, RerunError
from .trial import Lever, Trial, Untried, each_simulated

if TYPE_CHECKING:
    from ipuperf.frontends.poptorch.options.strategies import BlockPlace, Resolver

IN_PROGRAM = "the program itself gives the sizes of its batches"


def _count(model: ModelRequest) -> int:
    """Micro-batches of one replica in a weight update; in inference, of a call."""
    return int(model.options.Training.gradient_accumulation if model.training else model.options.device_iterations)


def _call(model: ModelRequest) -> str:
    return "Training.gradientAccumulation" if model.training else "deviceIterations"


def _set_count(request: ModelRequest, count: int) -> None:
    if request.training:
        request.options.Training.gradientAccumulation(count)
    else:
        request.options.deviceIterations(count)


class MicroBatches(Lever):
    """Larger micro-batches and fewer of them, or smaller and more."""

    change = "micro-batches of another size at the same global batch"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model = run.torch_model
        if model is None:
            yield self.untried(IN_PROGRAM)
            return
        for step in (Fraction(2), Fraction(1, 2)):
            factor, cycles = step, Trial(run.change, run.trace).cycles
            # Go on in this direction while it gains.
            while _count(model) % factor == 0:
                (outcome,) = each_simulated(run, [self._change(run, model, factor)])
                yield outcome
                if isinstance(outcome, Untried) or not outcome.fits or outcome.cycles >= cycles:
                    break
                factor, cycles = factor * step, outcome.cycles

    def _change(self, run: Rerun, model: ModelRequest, factor: Fraction) -> ProgramChange:
        old, new = _count(model), int(_count(model) / factor)
        size = f"{factor} times as large" if factor > 1 else f"{factor} as large"
        name = "gradient accumulation" if model.training else "device iterations"
        batch_norms = any(type(module).__name__.startswith("BatchNorm") for module in model.module.modules())
        return ProgramChange(
            f"make micro-batches {size}, with {name} {new} instead of {old}",
            training="batch norms see micro-batches of another size" if batch_norms and model.training else "",
            diff=(*run.option(_call(model), str(new)), *run.keyword("batch_size", factor, "DataLoader")),
            scaled={"batch_size": factor},
            of_model=lambda request: _set_count(request, new),
        )


class Replicas(Lever):
    """Neighbouring stages become one, and the IPUs that are free work as more replicas."""

    change = "replicas instead of stages"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model, ipus = run.torch_model, len(run.device_program.ipus)
        if ipus == 1:
            return
        if model is None:
            yield self.untried("the program itself says which op runs on which IPU")
            return
        if "phased" in model.options.execution_strategy.name:
            yield self.untried("a phased execution has no stages")
            return
        factors = [factor for factor in range(2, ipus + 1) if ipus % factor == 0]
        possible = [factor for factor in factors if _count(model) % factor == 0]
        if not possible:
            yield self.untried(f"its {_count(model)} micro-batches do not divide by {factors[0]}")
        yield from each_simulated(run, [self._change(run, model, ipus, factor) for factor in possible])

    def _change(self, run: Rerun, model: ModelRequest, ipus: int, factor: int) -> ProgramChange:
        replicas, count = model.options.replication_factor * factor, _count(model) // factor

        def divide(request: ModelRequest) -> None:
            request.options.replicationFactor(replicas)
            _set_count(request, count)
            request.options.setExecutionStrategy(_merged(request.options.execution_strategy, factor))

        scale = Fraction(1, factor)
        places = run.keyword("ipu_id", scale)
        in_one = (run.change.scale("ipu_id") * scale).denominator
        return ProgramChange(
            f"have {replicas} replicas on {ipus // factor} IPU{'s' if ipus > factor else ''} each instead of "
            f"{model.options.replication_factor} on {ipus}, with {count} micro-batches each instead of {_count(model)}",
            diff=(
                *run.option("replicationFactor", str(replicas)),
                *run.option(_call(model), str(count)),
                *(places or (f"+ # the blocks of IPU n on IPU n // {in_one}",)),
            ),
            scaled={"ipu_id": scale},
            of_model=divide,
        )


class MoreReplicas(Lever):
    """More replicas, on IPUs of the machine that have none, with fewer micro-batches each."""

    change = "more replicas on idle IPUs"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model, program = run.torch_model, run.device_program
        used = len(program.ipus) * program.replicas
        fitting = run.executable.machine.num_ipus // used
        # A machine that ipuperf chose is the smallest one, and no IPU of it waits for work.
        if fitting < 2 or run.origin.machine == AUTO:
            return
        if model is None:
            yield self.untried(IN_PROGRAM)
            return
        factors = [factor for factor in range(fitting, 1, -1) if _count(model) % factor == 0]
        if not factors:
            yield self.untried(f"its {_count(model)} micro-batches do not divide by 2")
        yield from each_simulated(run, [self._change(run, model, used, factor) for factor in factors[:1]])

    def _change(self, run: Rerun, model: ModelRequest, used: int, factor: int) -> ProgramChange:
        replicas, count = model.options.replication_factor * factor, _count(model) // factor

        def multiply(request: ModelRequest) -> None:
            request.options.replicationFactor(replicas)
            _set_count(request, count)

        return ProgramChange(
            f"have {replicas} replicas instead of {model.options.replication_factor}, on {factor * used} of the "
            f"machine's {run.executable.machine.num_ipus} IPUs, with {count} micro-batches each instead of "
            f"{_count(model)}",
            diff=(*run.option("replicationFactor", str(replicas)), *run.option(_call(model), str(count))),
            of_model=multiply,
        )


class MoreStages(Lever):
    """Fewer replicas, each with its blocks on more IPUs."""

    change = "stages instead of replicas"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model = run.torch_model
        if model is None or "pipelined" not in model.options.execution_strategy.name:
            return  # :class:`Replicas` says why
        factor, cycles = 2, Trial(run.change, run.trace).cycles
        # Go on while it gains.
        while model.options.replication_factor % factor == 0:
            (outcome,) = each_simulated(run, [self._change(run, model, factor)])
            yield outcome
            if isinstance(outcome, Untried) or not outcome.fits or outcome.cycles >= cycles:
                break
            factor, cycles = 2 * factor, outcome.cycles

    def _change(self, run: Rerun, model: ModelRequest, factor: int) -> ProgramChange:
        old_replicas, old_count, ipus = model.options.replication_factor, _count(model), len(run.device_program.ipus)
        replicas, count = old_replicas // factor, factor * old_count

        def spread(request: ModelRequest) -> None:
            request.options.replicationFactor(replicas)
            _set_count(request, count)
            request.options.setExecutionStrategy(_spread(request.options.execution_strategy, factor))

        return ProgramChange(
            f"have {replicas} replica{'s' if replicas > 1 else ''} on {factor * ipus} IPUs each instead of "
            f"{old_replicas} on {ipus}, with {count} micro-batches each instead of {old_count}",
            diff=(
                *run.option("replicationFactor", str(replicas)),
                *run.option(_call(model), str(count)),
                f"+ # the blocks of IPU n on IPUs {factor} * n to {factor} * n + {factor - 1}, equally many on each",
            ),
            of_model=spread,
        )


def _merged(strategy: Any, factor: int) -> Any:
    """The strategy with ``factor`` neighbouring IPUs in one."""
    return _elsewhere(
        strategy,
        lambda uses, places: [place._replace(stage=place.stage // factor, ipu=place.ipu // factor) for place in places],
    )


def _spread(strategy: Any, factor: int) -> Any:
    """The strategy with the blocks of each IPU on ``factor`` neighbouring ones, equally many on each."""

    def spread(uses: Sequence[tuple[str, int | None]], places: Sequence[BlockPlace]) -> list[BlockPlace]:
        blocks: dict[int, dict[str, int]] = {}
        for (block, _), place in zip(uses, places, strict=True):
            numbers = blocks.setdefault(place.ipu, {})
            numbers.setdefault(block, len(numbers))
        for ipu, numbers in sorted(blocks.items()):
            if len(numbers) < factor:
                raise RerunError(f"IPU {ipu} has {len(numbers)} of the model's blocks, too few for {factor} IPUs")
        shifts = [
            factor * blocks[place.ipu][block] // len(blocks[place.ipu])
            for (block, _), place in zip(uses, places, strict=True)
        ]
        return [
            place._replace(stage=factor * place.stage + shift, ipu=factor * place.ipu + shift)
            for place, shift in zip(places, shifts, strict=True)
        ]

    return _elsewhere(strategy, spread)


_Move: TypeAlias = "Callable[[Sequence[tuple[str, int | None]], Sequence[BlockPlace]], list[BlockPlace]]"
"""New places of all entries into blocks, from the entries and their places."""


def _elsewhere(strategy: Any, move: _Move) -> Any:
    """The strategy with its blocks in other places."""
    changed = copy(strategy)
    changed.resolver = lambda: _MovedBlocks(strategy.resolver(), move)
    return changed


class _MovedBlocks:
    """Puts blocks elsewhere than another resolver does."""

    def __init__(self, resolver: Resolver, move: _Move) -> None:
        self._resolver, self._move = resolver, move

    def places(self, uses: Iterable[tuple[str, int | None]]) -> list[BlockPlace]:
        """See :class:`ipuperf.poptorch.options.strategies.Resolver`."""
        entries = list(uses)
        return self._move(entries, self._resolver.places(entries))
