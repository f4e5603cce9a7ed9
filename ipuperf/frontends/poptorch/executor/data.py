"""What a call gives to the IPUs and gets from them: slices for micro-batches and replicas, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ipuperf.ir import Stream

from ..enums import CommGroupType, OutputMode
from ..errors import ArgumentError, Error
from ..export.module import InputSpec, OutputSpec
from .program import Program, Task

_NO_BACKWARD = (
    "backward(): an output of a PopTorch model has no graph behind it. A call of a trainingModel runs the backward "
    "pass too; an inferenceModel has none."
)


class CallData:
    """Inputs, results and anchored tensors of the calls of a program."""

    def __init__(self, task: Task, program: Program) -> None:
        self._options, self._training = task.options, task.training
        self._program = program
        self._anchored: dict[str, np.ndarray] = {}

    def sent(self, tensors: Sequence[torch.Tensor]) -> dict[Stream, np.ndarray]:
        """What goes to the IPUs. ``Error``: an input of another type or shape."""
        specs = self._program.require().exported.inputs
        # All are checked before one is cut, so that the first wrong one is named.
        for spec, tensor in zip(specs, tensors, strict=True):
            self._check(spec, tensor)
        return {
            spec.stream: self._slices(spec, tensor)
            for spec, tensor in zip(specs, tensors, strict=True)
            if spec.stream is not None
        }

    def received(self, tensors: Sequence[torch.Tensor], arrays: Mapping[Stream, np.ndarray]) -> Any:
        """The result of a call; inputs that ``forward`` changes in place get their new values.

        Args:
            tensors: the inputs.
            arrays: what the IPUs sent.
        """
        compiled = self._program.require()
        synthetic = self._options._Popart.synthetic_data
        if synthetic:
            arrays = {stream: self._never_sent(stream) for stream in compiled.streams if stream is not None}
        results = [
            self._result(spec, None if stream is None else arrays[stream])
            for spec, stream in zip(compiled.exported.outputs, compiled.streams, strict=True)
        ]
        if not synthetic:
            self._write_inputs(tensors, arrays)
            self._anchored = {name: arrays[anchor.stream] for name, anchor in compiled.anchors.items()}
        return compiled.exported.result_of(results)

    def _check(self, spec: InputSpec, tensor: torch.Tensor) -> None:
        """An input has the type and shape that the model was compiled for."""
        if tensor.dtype != spec.dtype:
            raise Error(f"Input {spec.name!r} is {tensor.dtype}, the model was compiled for {spec.dtype}")
        groups = self._options.replication_factor // self._options.input_group_size
        micro_batches = self._program.require().micro_batches * groups
        expected = (micro_batches * spec.shape[0], *spec.shape[1:]) if spec.shape else ()
        if tensor.shape != expected:
            raise Error(
                f"Input {spec.name!r} has shape {tuple(tensor.shape)}, the model was compiled for {expected}; the "
                "shapes of a data set must not change (use drop_last=True)"
            )

    def _slices(self, spec: InputSpec, tensor: torch.Tensor) -> np.ndarray:
        """``(micro-batches, replicas, *shape)``: replicas take micro-batches in turn."""
        compiled = self._program.require()
        array = spec.to_numpy(tensor)
        group = self._options.input_group_size
        groups = self._options.replication_factor // group
        if not spec.shape:
            # A tensor without axes goes to all micro-batches and replicas alike.
            return np.broadcast_to(array, (compiled.micro_batches, self._options.replication_factor))
        split = array.reshape(compiled.micro_batches, groups, *spec.shape)
        if group == 1:
            return split
        repeated = np.repeat(split, group, axis=1)
        if CommGroupType(self._options.input_group_type) is CommGroupType.Orthogonal:
            # Orthogonal groups: replicas that are `groups` apart share their input.
            repeated = np.concatenate([split] * group, axis=1)
        return repeated

    def _never_sent(self, stream: Stream) -> np.ndarray:
        """What stands for a result without host I/O: zeros."""
        shape = (stream.transfers or 1, self._options.replication_factor, *stream.shape)
        return np.zeros(shape, stream.dtype.numpy)

    def _result(self, spec: OutputSpec, array: np.ndarray | None) -> torch.Tensor:
        """A result from ``(slices, replicas, *shape)``: slices and replicas joined along axis 0."""
        mode, period = self._options.resolved_output_mode(self._training), self._program.require().kept_period
        if array is None:
            array, period = self._repeated(spec, mode), 1
        result = spec.to_torch(self.joined(array, spec.shape, mode, period))
        result.backward = _no_backward  # type: ignore[method-assign]
        return result

    def _repeated(self, spec: OutputSpec, mode: OutputMode) -> np.ndarray:
        """The slices of a result that is the same for every micro-batch."""
        assert spec.constant is not None
        slices = self._program.require().micro_batches
        if mode is OutputMode.Final:
            slices = 1
        elif mode is OutputMode.EveryN:
            slices //= self._options.output_return_period
        shape = (slices, self._options.replication_factor, *spec.shape)
        return np.array(np.broadcast_to(spec.constant.numpy(), shape))

    @staticmethod
    def joined(array: np.ndarray, shape: tuple[int, ...], mode: OutputMode, period: int) -> np.ndarray:
        """The slices that a mode returns, with replicas, joined along axis 0."""
        if mode is OutputMode.EveryN:
            # Of each period the last slice is returned.
            array = array[period - 1 :: period]
        elif mode is OutputMode.Sum and len(array) > 1:
            # NumPy would sum small integers in 64 bits.
            array = array.sum(axis=0, keepdims=True, dtype=array.dtype)
        # Tensors without axes become an axis of their own where there are several of them.
        count = array.shape[0] * array.shape[1]
        return array.reshape((count * shape[0], *shape[1:]) if shape else ((count,) if count > 1 else ()))

    def _write_inputs(self, tensors: Sequence[torch.Tensor], results: Mapping[Stream, np.ndarray]) -> None:
        """Give the tensors that ``forward`` changes in place their new values: each micro-batch its own samples. A
        tensor without axes, which all share, gets what the last micro-batch made of it; of replicas that had the same
        samples the first one counts."""
        compiled = self._program.require()
        for number, stream in compiled.written.items():
            spec, tensor = compiled.exported.written[number], tensors[number].detach()
            if stream is None:
                assert spec.constant is not None
                copies = (tensor.shape[0] // spec.shape[0], *[1] * (len(spec.shape) - 1)) if spec.shape else ()
                tensor.copy_(spec.constant.repeat(copies))
            elif not spec.shape:
                tensor.copy_(spec.to_torch(results[stream][-1, -1]))
            else:
                tensor.copy_(spec.to_torch(self._of_groups(results[stream]).reshape(tensor.shape)))

    def _of_groups(self, array: np.ndarray) -> np.ndarray:
        """``(micro-batches, replicas, *shape)`` for one replica of each input group."""
        size = self._options.input_group_size
        if CommGroupType(self._options.input_group_type) is CommGroupType.Orthogonal:
            return array[:, : array.shape[1] // size]
        return array[:, ::size]

    def anchored(self, short_name: str) -> torch.Tensor:
        """What the last call made of an anchored tensor. ``Error``: there is no such anchor, or no call yet."""
        anchors = self._program.require().anchors
        if short_name not in anchors:
            known = ", ".join(anchors) or "nothing is anchored"
            raise ArgumentError(f"getAnchoredTensor({short_name!r}): no anchor of this name; anchored: {known}")
        if short_name not in self._anchored:
            raise ArgumentError(f"getAnchoredTensor({short_name!r}): the model has not been run")
        anchor = anchors[short_name]
        array = self.joined(self._anchored[short_name], anchor.stream.shape, anchor.mode, anchor.period)
        return torch.from_numpy(np.array(array)).to(anchor.dtype)


def _no_backward(*args: Any, **kwargs: Any) -> None:
    raise Error(_NO_BACKWARD)
