"""Levers on the type of numbers: float16 for a whole PyTorch module, or for a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ipuperf.pipelines import HostInput
from ipuperf.runtime.model_revision import ModelRequest

from .change import ProgramChange
from .parts import expression, parts_of
from .rerun import Rerun
from .trial import Lever, Trial, Untried, each_simulated

IN_PROGRAM = "the program itself gives the types of its tensors"


def _float32(run: Rerun) -> bool:
    """Whether the model has parameters of float32."""
    parameters = () if run.torch_model is None else run.torch_model.module.parameters()
    return any(str(parameter.dtype) == "torch.float32" for parameter in parameters)


class HalfModel(Lever):
    """All parameters, states and inputs in float16; then partial sums of products too."""

    change = "float16 for the whole model"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.torch_model is None:
            yield self.untried(IN_PROGRAM)
            return
        if not _float32(run):
            return
        floats = any(
            isinstance(source, HostInput) and source.stream.dtype.is_floating_point
            for request in run.pipelines
            for part in request.parts
            for source in part.sources
        )
        inputs = ("+ # and pass floating-point inputs as x.half()",) if floats else ()
        diff = (f"+ {run.text.module}.half()", *inputs)
        partials = run.option("Precision.setPartialsType", "torch.half")
        what = "compute the whole model in float16"
        training = "float16 numbers, which may need a loss scale"
        yield from each_simulated(
            run,
            [
                ProgramChange(what, training=training, diff=diff, of_model=_halve),
                ProgramChange(
                    f"{what}, partial sums too",
                    training=f"{training}; float16 partial sums",
                    diff=(*diff, *partials),
                    of_model=_halve_partials,
                ),
            ],
        )


def _halve(request: ModelRequest) -> None:
    request.module.half()
    request.inputs += (partial(_converted, method="half"),)


def _halve_partials(request: ModelRequest) -> None:
    _halve(request)
    half = next(parameter.dtype for parameter in request.module.parameters() if parameter.is_floating_point())
    request.options.Precision.setPartialsType(half)


class HalfPart(Lever):
    """One part of the module in float16; its inputs and results are converted."""

    change = "float16 for a part of the model"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        if run.torch_model is None or not _float32(run):
            return  # :class:`HalfModel` says why
        yield from each_simulated(run, [self._change(run, path) for path in parts_of(run.torch_model.module)])

    def _change(self, run: Rerun, path: str) -> ProgramChange:
        part = expression(run.text.module, path)
        converted = "tuple(x.half() if x.is_floating_point() else x for x in inputs)"
        return ProgramChange(
            f"compute {path} in float16",
            training=f"float16 numbers in {path}",
            diff=(
                f"+ {part}.half()",
                f"+ {part}.register_forward_pre_hook(lambda part, inputs: {converted})",
                f"+ {part}.register_forward_hook(lambda part, inputs, output: output.float())",
            ),
            of_model=partial(_halve_part, path=path),
        )


def _halve_part(request: ModelRequest, path: str) -> None:
    part = request.module.get_submodule(path).half()
    part.register_forward_pre_hook(
        lambda part, args, kwargs: (_converted(args, "half"), _converted(kwargs, "half")), with_kwargs=True
    )
    part.register_forward_hook(lambda part, inputs, output: _converted(output, "float"))


def _converted(value: Any, method: str) -> Any:
    """Floating-point tensors in a nest of containers, converted by a method of theirs."""
    if isinstance(value, dict):
        return {key: _converted(member, method) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_converted(member, method) for member in value])
    floating = hasattr(value, "is_floating_point") and value.is_floating_point()
    return getattr(value, method)() if floating else value
