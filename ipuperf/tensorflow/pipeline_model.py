"""What a pipeline is described with: stages and their options, the optimiser and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .accumulation import GradientAccumulationOptimizerV2, MapGradientOptimizer, Wrapper, innermost, wrappers
from .array import is_traced
from .devices import PLAN_OPTIONS
from .effects import EFFECTS
from .optimizer import Optimizer, check_gradient_options

StageOptions = tuple[dict[str, Any], dict[str, Any]]
"""PopLibs options of matrix products and of convolutions."""

_KNOWN_COMPUTE_GRADIENTS = (
    Optimizer.compute_gradients,
    Wrapper.compute_gradients,
    MapGradientOptimizer.compute_gradients,
)


class OptimizerFunctionOutput:
    """What an ``optimizer_function`` returns.

    Args:
        opt: the optimiser.
        loss: an array of the last stage.
        compute_gradients_kwargs: ``var_list`` chooses the variables.
        apply_gradients_args, apply_gradients_kwargs: further arguments of ``opt.apply_gradients``.

    Raises:
        TypeError: one of them has another type. NotImplementedError: Keras V2 and gradient capture options.
    """

    def __init__(
        self,
        opt: Optimizer,
        loss: Any,
        compute_gradients_args: tuple[Any, ...] | None = None,
        compute_gradients_kwargs: dict[str, Any] | None = None,
        apply_gradients_args: tuple[Any, ...] | None = None,
        apply_gradients_kwargs: dict[str, Any] | None = None,
        variables: Any = None,
        tape: Any = None,
        gradient_capture_context: Any = None,
        captured_gradient_outfeed: Any = None,
    ) -> None:
        if not isinstance(opt, Optimizer):
            raise TypeError(
                "OptimizerFunctionOutput.opt must be a TensorFlow Optimizer or Keras OptimizerV2 object, not "
                f"{type(opt).__name__}."
            )
        if not is_traced(loss):
            raise TypeError(f"OptimizerFunctionOutput.loss must be a TensorFlow Tensor object, not {loss!r}.")
        for name, value, wanted in (
            ("compute_gradients_args", compute_gradients_args, tuple),
            ("compute_gradients_kwargs", compute_gradients_kwargs, dict),
            ("apply_gradients_args", apply_gradients_args, tuple),
            ("apply_gradients_kwargs", apply_gradients_kwargs, dict),
        ):
            if value is not None and not isinstance(value, wanted):
                raise TypeError(f"OptimizerFunctionOutput.{name} must be a {wanted.__name__}.")
        EFFECTS.given("ipu.pipelining_ops.OptimizerFunctionOutput(tape)", tape)
        EFFECTS.given("ipu.pipelining_ops.OptimizerFunctionOutput(gradient_capture_context)", gradient_capture_context)
        EFFECTS.given(
            "ipu.pipelining_ops.OptimizerFunctionOutput(captured_gradient_outfeed)", captured_gradient_outfeed
        )
        EFFECTS.given("ipu.pipelining_ops.OptimizerFunctionOutput(variables)", variables)
        check_gradient_options(**{k: v for k, v in (compute_gradients_kwargs or {}).items() if k != "var_list"})
        check_gradient_options(*(compute_gradients_args or ())[1:])
        self.opt = opt
        self.loss = loss
        self.compute_gradients_args = compute_gradients_args or ()
        self.compute_gradients_kwargs = compute_gradients_kwargs or {}
        self.apply_gradients_args = apply_gradients_args or ()
        self.apply_gradients_kwargs = apply_gradients_kwargs or {}


class PipelineStageOptions:
    """PopLibs options of one stage. Of the matmul and convolution options ``availableMemoryProportion`` and
    ``partialsType`` have an effect.

    Raises:
        TypeError: something other than dictionaries.
    """

    def __init__(
        self,
        convolution_options: dict[str, Any] | None = None,
        matmul_options: dict[str, Any] | None = None,
        slice_options: dict[str, Any] | None = None,
    ) -> None:
        for name, value in (
            ("convolution_options", convolution_options),
            ("matmul_options", matmul_options),
            ("slice_options", slice_options),
        ):
            if value and not isinstance(value, dict):
                raise TypeError(f"PipelineStageOptions.{name} must be dictionary.")
        if set(matmul_options or ()) - PLAN_OPTIONS:
            EFFECTS.given("ipu.pipelining_ops.PipelineStageOptions(matmul_options, other keys)", matmul_options)
        if set(convolution_options or ()) - PLAN_OPTIONS:
            EFFECTS.given(
                "ipu.pipelining_ops.PipelineStageOptions(convolution_options, other keys)", convolution_options
            )
        EFFECTS.given("ipu.pipelining_ops.PipelineStageOptions(slice_options)", slice_options)
        self.convolution_options = dict(convolution_options or {})
        self.matmul_options = dict(matmul_options or {})
        self.slice_options = dict(slice_options or {})

    def plans(self) -> StageOptions:
        """Options of matrix products and of convolutions."""
        return self.matmul_options, self.convolution_options


class StageFunctions:
    """One stage: its functions (several when concurrent) and their devices."""

    def __init__(self, functions: list[Callable[..., Any]], devices: list[int]) -> None:
        self.functions = functions
        self.devices = devices


def check_optimizer(output: Any) -> OptimizerFunctionOutput:
    """What an optimizer function returned.

    Raises:
        TypeError: no :class:`OptimizerFunctionOutput`; ValueError: a gradient accumulation optimiser.
        NotImplementedError: an optimiser with a ``compute_gradients`` of its own, which a pipeline would not call.
    """
    if not isinstance(output, OptimizerFunctionOutput):
        raise TypeError(
            f"optimizer_function returned {output!r}; an instance of pipelining_ops.OptimizerFunctionOutput is needed"
        )
    for one in (*wrappers(output.opt), innermost(output.opt)):
        if type(one).compute_gradients not in _KNOWN_COMPUTE_GRADIENTS:
            raise NotImplementedError(
                f"optimizer {one.name!r} has a compute_gradients of its own, which pipelines cannot call: stages are "
                "differentiated one by one; use MapGradientOptimizer, or change the gradients in apply_gradients"
            )
    for wrapper in wrappers(output.opt):
        if isinstance(wrapper, GradientAccumulationOptimizerV2):
            raise ValueError(
                "Since pipelined models always implement gradient accumulation, no gradient accumulation optimizer "
                f"should be used in combination with pipelining; {wrapper.name} wraps the optimizer here"
            )
    return output
