"""What a pipeline is described with: stages and their options, the optimiser and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..effects import EFFECTS
from ..programs.devices import PLAN_OPTIONS
from ..programs.outfeed import IPUOutfeedQueue
from .accumulation import GradientAccumulationOptimizerV2, Optimizer, wrappers

StageOptions = tuple[dict[str, Any], dict[str, Any]]
"""PopLibs options of matrix products and of convolutions."""

_WITHOUT_DIFFERENCE = ("var_list", "gate_gradients", "aggregation_method", "colocate_gradients_with_ops")
"""Arguments of ``compute_gradients``: the variables, and what gives the same gradients."""


class OptimizerFunctionOutput:
    """What an ``optimizer_function`` returns.

    Args:
        opt: the optimiser: of version 1 (``tf.compat.v1.train``) or Keras'.
        loss: a tensor of the last stage.
        compute_gradients_kwargs: ``var_list`` chooses the variables.
        apply_gradients_args, apply_gradients_kwargs: further arguments of ``opt.apply_gradients``.
        variables: the variables that a Keras optimiser trains.
        tape: in their place: all trainable ones of the stages (which are differentiated one by one).

    Raises:
        TypeError: one of them has another type. ValueError: one that does not go with the optimiser or another one.
        NotImplementedError: gradient capture, ``grad_loss``.
    """

    def __init__(
        self,
        opt: Any,
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
        if not isinstance(opt, Optimizer) and not callable(getattr(opt, "apply_gradients", None)):
            raise TypeError(
                "OptimizerFunctionOutput.opt must be a TensorFlow Optimizer or Keras OptimizerV2 object, not "
                f"{type(opt).__name__}."
            )
        if not tf.is_tensor(loss):
            raise TypeError(f"OptimizerFunctionOutput.loss must be a TensorFlow Tensor object, not {loss!r}.")
        arguments = {
            "compute_gradients_args": (compute_gradients_args, tuple),
            "compute_gradients_kwargs": (compute_gradients_kwargs, dict),
            "apply_gradients_args": (apply_gradients_args, tuple),
            "apply_gradients_kwargs": (apply_gradients_kwargs, dict),
            "variables": (variables, (tuple, list)),
            "tape": (tape, tf.GradientTape),
            "captured_gradient_outfeed": (captured_gradient_outfeed, IPUOutfeedQueue),
        }
        arguments = {name: pair for name, pair in arguments.items() if pair[0] or isinstance(pair[0], pair[1])}
        for name, (value, allowed) in arguments.items():
            if not isinstance(value, allowed):
                listed = allowed if isinstance(allowed, tuple) else (allowed,)
                names = " or ".join(kind.__name__ for kind in listed)
                raise TypeError(f"OptimizerFunctionOutput.{name} must be a {names}.")
        _check_together(isinstance(opt, Optimizer), {name for name, (value, _) in arguments.items() if value})
        EFFECTS.given("ipu.pipelining_ops.OptimizerFunctionOutput(tape)", tape)
        EFFECTS.given("ipu.pipelining_ops.OptimizerFunctionOutput(gradient_capture_context)", gradient_capture_context)
        EFFECTS.given(
            "ipu.pipelining_ops.OptimizerFunctionOutput(captured_gradient_outfeed)", captured_gradient_outfeed
        )
        _check_gradient_options(compute_gradients_args or (), compute_gradients_kwargs or {})
        self.opt = opt
        self.loss = loss
        self.compute_gradients_args = compute_gradients_args or ()
        self.compute_gradients_kwargs = compute_gradients_kwargs or {}
        self.apply_gradients_args = apply_gradients_args or ()
        self.apply_gradients_kwargs = apply_gradients_kwargs or {}
        self.variables = list(variables or ())
        self.tape = tape

    @property
    def var_list(self) -> list[Any] | None:
        """The variables that are chosen; None: all trainable ones of the stages."""
        chosen = self.compute_gradients_kwargs.get("var_list")
        if chosen is None and self.compute_gradients_args:
            chosen = self.compute_gradients_args[0]
        return list(chosen) if chosen is not None else self.variables or None


def _check_together(of_version_1: bool, names: set[str]) -> None:
    """ValueError for arguments of the other kind of optimiser, or that say the same twice."""
    unfit = {"variables", "tape"} if of_version_1 else {"compute_gradients_args", "compute_gradients_kwargs"}
    if names & unfit:
        kind = "of version 1" if of_version_1 else "of Keras"
        raise ValueError(f"OptimizerFunctionOutput: {min(names & unfit)} is not for an optimizer {kind}")
    if names >= {"variables", "tape"}:
        raise ValueError(
            "OptimizerFunctionOutput: the variables are those given or those of the tape; give one of both"
        )
    if "captured_gradient_outfeed" in names:
        raise ValueError("OptimizerFunctionOutput: captured_gradient_outfeed needs gradients that are captured")


def _check_gradient_options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """NotImplementedError for arguments of ``compute_gradients`` that would change the gradients."""
    named = {**dict(zip((*_WITHOUT_DIFFERENCE, "grad_loss"), args)), **kwargs}
    changing = [name for name, value in named.items() if name not in _WITHOUT_DIFFERENCE and value is not None]
    if changing:
        raise NotImplementedError(
            f"OptimizerFunctionOutput: compute_gradients({', '.join(changing)}): stages are differentiated one by one; "
            "multiply the loss instead"
        )


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


@dataclass(eq=False)
class StageFunctions:
    """One stage: its functions (several when concurrent) and their devices."""

    functions: list[Callable[..., Any]]
    devices: list[int]


def check_optimizer(output: Any) -> OptimizerFunctionOutput:
    """What an optimizer function returned.

    Raises:
        TypeError: no :class:`OptimizerFunctionOutput`; ValueError: a gradient accumulation optimiser; RuntimeError: one
            of Keras without variables.
    """
    if not isinstance(output, OptimizerFunctionOutput):
        raise TypeError(
            f"optimizer_function returned {output!r}; an instance of pipelining_ops.OptimizerFunctionOutput is needed"
        )
    if not isinstance(output.opt, Optimizer) and not output.variables and output.tape is None:
        raise RuntimeError(
            "pipeline: an optimizer of Keras needs the variables that it trains: give `variables` to "
            "OptimizerFunctionOutput, or a tape"
        )
    for wrapper in wrappers(output.opt):
        if isinstance(wrapper, GradientAccumulationOptimizerV2):
            raise ValueError(
                "Since pipelined models always implement gradient accumulation, no gradient accumulation optimizer "
                f"should be used in combination with pipelining; {wrapper.get_name()} wraps the optimizer here"
            )
    return output
