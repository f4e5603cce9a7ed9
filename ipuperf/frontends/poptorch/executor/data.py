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
from .state import ExecutorState

_NO_BACKWARD = (
    "backward(): an output of a PopTorch model has no graph behind it. A call of a trainingModel runs the backward "
    "pass too; an inferenceModel has none."
)


class CallData(ExecutorState):
    """Inputs, results, anchored tensors."""

    def _checked(self, spec: InputSpec, tensor: torch.Tensor) -> torch.Tensor:
        """An input, of the type and shape that the model was compiled for."""
        if tensor.dtype != spec.dtype:
            raise Error(f"Input {spec.name!r} is {tensor.dtype}, the model was compiled for {spec.dtype}")
        groups = self._options.replication_factor // self._options.input_group_size
        micro_batches = self._require().micro_batches * groups
        expected = (micro_batches * spec.shape[0], *spec.shape[1:]) if spec.shape else ()
        if tensor.shape != expected:
            raise Error(
                f"Input {spec.name!r} has shape {tuple(tensor.shape)}, the model was compiled for {expected}; the "
                "shapes of a data set must not change (use drop_last=True)"
            )
        return tensor

    def _slices(self, spec: InputSpec, tensor: torch.Tensor) -> np.ndarray:
        """``(micro-batches, replicas, *shape)``: replicas take micro-batches in turn."""
        compiled = self._require()
        array = spec.to_numpy(tensor)
        group = self._options.input_group_size
        groups = self._options.replication_factor // group
        if not spec.shape:
            return np.broadcast_to(array, (compiled.micro_batches, self._options.replication_factor))
        split = array.reshape(compiled.micro_batches, groups, *spec.shape)
        if group == 1:
            return split
        repeated = np.repeat(split, group, axis=1)
        if CommGroupType(self._options.input_group_type) is CommGroupType.Orthogonal:
            repeated = np.concatenate([split] * group, axis=1)
        return repeated

    def _never_sent(self, stream: Stream) -> np.ndarray:
        """What stands for a result without host I/O: zeros."""
        shape = (stream.transfers or 1, self._options.replication_factor, *stream.shape)
        return np.zeros(shape, stream.dtype.numpy)

    def _result(self, spec: OutputSpec, array: np.ndarray | None) -> torch.Tensor:
        """A result from ``(slices, replicas, *shape)``: slices and replicas joined along axis 0."""
        mode, period = self._options.resolved_output_mode(self._training), self._require().kept_period
        if array is None:
            array, period = self._repeated(spec, mode), 1
        result = spec.to_torch(self._joined(array, spec.shape, mode, period))
        result.backward = _no_backward  # type: ignore[method-assign]
        return result

    def _repeated(self, spec: OutputSpec, mode: OutputMode) -> np.ndarray:
        """The slices of a result that is the same for every micro-batch."""
        assert spec.constant is not None
        slices = self._require().micro_batches
        if mode is OutputMode.Final:
            slices = 1
        elif mode is OutputMode.EveryN:
            slices //= self._options.output_return_period
        shape = (slices, self._options.replication_factor, *spec.shape)
        return np.array(np.broadcast_to(spec.constant.numpy(), shape))

    @staticmethod
    def _joined(array: np.ndarray, shape: tuple[int, ...], mode: OutputMode, period: int) -> np.ndarray:
        """The slices that a mode returns, with replicas, joined along axis 0."""
        if mode is OutputMode.EveryN:
            array = array[period - 1 :: period]
        elif mode is OutputMode.Sum and len(array) > 1:
            array = array.sum(axis=0, keepdims=True, dtype=array.dtype)
        count = array.shape[0] * array.shape[1]
        return array.reshape((count * shape[0], *shape[1:]) if shape else ((count,) if count > 1 else ()))

    def _write_inputs(self, tensors: Sequence[torch.Tensor], results: Mapping[Stream, np.ndarray]) -> None:
        """Give the tensors that ``forward`` changes in place their new values: each micro-batch its own samples. A
        tensor without axes, which all share, gets what the last micro-batch made of it; of replicas that had the same
        samples the first one counts."""
        compiled = self._require()
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

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What the last call made of the tensor that ``Options.anchorTensor`` calls so.

        Raises:
            Error: there is no such anchor, or no call yet.
        """
        anchors = self._require().anchors
        if short_name not in anchors:
            known = ", ".join(anchors) or "nothing is anchored"
            raise ArgumentError(f"getAnchoredTensor({short_name!r}): no anchor of this name; anchored: {known}")
        if short_name not in self._anchored:
            raise ArgumentError(f"getAnchoredTensor({short_name!r}): the model has not been run")
        anchor = anchors[short_name]
        array = self._joined(self._anchored[short_name], anchor.stream.shape, anchor.mode, anchor.period)
        return torch.from_numpy(np.array(array)).to(anchor.dtype)


def _no_backward(*args: Any, **kwargs: Any) -> None:
    raise Error(_NO_BACKWARD)
