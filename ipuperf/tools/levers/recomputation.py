"""Levers on recomputation: of the whole model, and without it in one part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ipuperf.runtime.model_revision import ModelRequest

from .change import ProgramChange
from .parts import expression, parts_of
from .rerun import Rerun
from .trial import Lever, Trial, Untried, each_simulated, simulated

IN_PROGRAM = "the program itself says what runs again"
_KEY = "autoRecomputation"
_STANDARD, _ALL = 1, 4  # PopART's numbers of its kinds of recomputation


def _recomputing(run: Rerun) -> bool:
    """Whether the session's pipeline recomputes whole stages."""
    timetable = run.pipelines[-1].timetable
    return any(kind == "R" for kind, _ in timetable.kinds) or timetable.stashed == "stage inputs"


def _trains(run: Rerun) -> bool:
    return bool(run.pipelines) and run.pipelines[-1].training is not None


class RecomputationSwitch(Lever):
    """Recomputation off where the program has it, on where it has none."""

    change = "recomputation"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model = run.model
        if model is None:
            yield self.untried(IN_PROGRAM)
        elif not _trains(run):
            return
        elif model.front_end == "tensorflow":
            if model.options is not None:
                yield simulated(run, _allowed(not model.options.allow_recompute))
        else:
            options = model.options._Popart.options
            recomputes = _recomputing(run) or options.get(_KEY) not in (None, 0)
            pipelined = run.pipelines[-1].copies == "every step"
            kinds = [0] if recomputes else [3] if pipelined else [_STANDARD, _ALL]
            yield from each_simulated(run, [_of_kind(run, kind) for kind in kinds])


def _allowed(allowed: bool) -> ProgramChange:
    def set_option(request: ModelRequest) -> None:
        if request.options is not None:
            request.options.allow_recompute = allowed

    return ProgramChange(
        "recompute the forward of stages" if allowed else "keep activations instead of recomputing them",
        trades_memory=not allowed,
        diff=(f"+ config.allow_recompute = {allowed}",),
        of_model=set_option,
    )


def _of_kind(run: Rerun, kind: int) -> ProgramChange:
    def set_option(request: ModelRequest) -> None:
        request.options._Popart.set(_KEY, kind)

    kinds = {0: "", 1: " between automatic checkpoints", 3: " of stages", 4: " between the program's checkpoints"}
    return ProgramChange(
        f"recompute the forward{kinds[kind]}" if kind else "keep activations instead of recomputing them",
        trades_memory=kind == 0,
        diff=run.option("_Popart.set", f"'{_KEY}', {kind}"),
        of_model=set_option,
    )


class KeptPart(Lever):
    """In a pipeline that recomputes its stages, one part keeps the results of its layers."""

    change = "recomputation without a part of the model"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model = run.torch_model
        if model is None or not _trains(run) or not _recomputing(run):
            return  # :class:`RecomputationSwitch` says why
        yield from each_simulated(run, [self._change(run, model, path) for path in parts_of(model.module)])

    def _change(self, run: Rerun, model: ModelRequest, path: str) -> ProgramChange:
        part = expression(run.text.module, path)
        layers = f"{part}.children()" if list(model.module.get_submodule(path).children()) else f"[{part}]"
        keep = "lambda layer, inputs, output: poptorch.recomputationCheckpoint(output)"
        return ProgramChange(
            f"keep the results of the layers of {path} instead of recomputing them",
            trades_memory=True,
            diff=(f"+ for layer in {layers}: layer.register_forward_hook({keep})",),
            of_model=partial(_keep, path=path),
        )


def _keep(request: ModelRequest, path: str) -> None:
    from ipuperf.frontends.poptorch import recomputationCheckpoint

    part = request.module.get_submodule(path)
    for layer in list(part.children()) or [part]:
        layer.register_forward_hook(lambda layer, inputs, output: recomputationCheckpoint(output))
