"""Where values wait for a later cell: rings on the IPU or entries of remote buffers, with their counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.functions import make
from ipuperf.ir import UINT32, RemoteBuffer, Tensor, TensorSpec
from ipuperf.ops import CopyVarUpdate, DynamicSlice, DynamicUpdateInplace, IncrementModInplace, Reshape

from .remote import remote_load, remote_store
from .scope import Scope

if TYPE_CHECKING:
    from .build import PipelineWriter


@dataclass(frozen=True)
class TensorStash:
    """Where one forward value waits: a ring on the IPU, or entries of a remote buffer."""

    value: Tensor
    slots: int
    ring: Tensor | None
    buffer: RemoteBuffer | None

    @property
    def bytes(self) -> int:
        """Bytes on one replica."""
        return self.slots * self.value.spec.bytes


class Stashes:
    """The stashes of values that are made and read together, in the order of the micro-batches.

    Args:
        builder: gives memory.
        name: name of the stage.
        ipu: IPU of the stage.
        slots: micro-batches that wait at most.
        readers: names of the sides that read, each at its own pace.
    """

    def __init__(
        self, builder: PipelineWriter, name: str, ipu: int, slots: int, readers: Sequence[str] = ("read",)
    ) -> None:
        self.builder = builder
        self.name = name
        self.ipu = ipu
        self.slots = slots
        self.sides = ("write", *readers)
        self.by_tensor: dict[Tensor, TensorStash] = {}
        self.counters: dict[str, Tensor] = {}
        builder.stashes.append(self)

    def make(self, tensors: Sequence[Tensor]) -> None:
        """Make memory for ``tensors``, and a counter for each side where there is more than one slot."""
        for tensor in tensors:
            self.by_tensor[tensor] = self.builder.stash(tensor, self.slots, self.ipu, self.name)
        # With one slot nothing has to be counted.
        if self.by_tensor and self.slots > 1:
            for side in self.sides:
                self.counters[side] = self.builder.buffer(
                    TensorSpec((1,), UINT32), self.ipu, f"{self.name}_{side}_slot", zero=True
                )

    def put(self, routine: Scope, tensor: Tensor, value: Tensor) -> None:
        """Write ``value`` into the stash of ``tensor``."""
        stash = self.by_tensor[tensor]
        if stash.buffer is not None:
            remote_store(stash.buffer, self._slot(routine, "write"), value)
            return
        assert stash.ring is not None
        # A ring with one slot has the value's own shape and needs no dynamic update.
        if self.slots == 1:
            make(CopyVarUpdate, stash.ring, value)
            return
        row = self._reshaped(routine, value, (1, *tensor.shape))
        make(DynamicUpdateInplace, stash.ring, self._slot(routine, "write"), row, axes=(0,), sizes=(1,))

    def take(self, routine: Scope, tensor: Tensor, side: str = "read") -> Tensor:
        """Read the oldest entry of the stash of ``tensor`` that ``side`` has not read."""
        stash = self.by_tensor[tensor]
        if stash.buffer is not None:
            return remote_load(stash.buffer, self._slot(routine, side), tensor.name)
        assert stash.ring is not None
        if self.slots == 1:
            return routine.get(stash.ring)
        with routine.floating():
            row = make(DynamicSlice, stash.ring, self._slot(routine, side), name=tensor.name, axes=(0,), sizes=(1,))
        return self._reshaped(routine, row, tensor.shape)

    def _slot(self, routine: Scope, side: str) -> Tensor:
        """The counter of one side; entry 0 when there is only one slot."""
        if side in self.counters:
            return routine.get(self.counters[side])
        return routine.constant(np.zeros(1, np.uint32), UINT32, "slot")

    def advance(self, routine: Scope, side: str) -> None:
        """Move a counter to the next slot."""
        if side not in self.counters:
            return
        counter = routine.get(self.counters[side])
        readers = list(counter.consumers)
        increment = routine.create(IncrementModInplace, [counter], ["t"], increment=1, modulus=self.slots)
        # Everything that uses the slot number has to run before it changes.
        for reader in readers:
            routine.graph.constrain(reader, increment)

    def _reshaped(self, routine: Scope, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """``tensor`` in another shape."""
        with routine.floating():
            return make(Reshape, tensor, name=tensor.name, shape=tuple(shape))
