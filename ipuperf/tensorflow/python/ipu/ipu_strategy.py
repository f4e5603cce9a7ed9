"""``IPUStrategy``: where TensorFlow 2 programs run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...compiled import Function
from ...effects import EFFECTS


class IPUStrategyV1:
    """Runs functions on the IPU: each is traced once per kind of arguments and is one program."""

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        EFFECTS.given("ipu.ipu_strategy.IPUStrategyV1(cpu_device)", cpu_device)
        EFFECTS.given("ipu.ipu_strategy.IPUStrategyV1(enable_dataset_iterators)", enable_dataset_iterators)
        EFFECTS.given("ipu.ipu_strategy.IPUStrategyV1(enable_keras_extensions)", enable_keras_extensions)
        self._device = ipu_device
        self._functions: dict[Any, Function] = {}

    @contextmanager
    def scope(self) -> Iterator[IPUStrategyV1]:
        """Programs of the block are for the strategy's device."""
        from .scopes import ipu_scope

        with ipu_scope(self._device):
            yield self

    @property
    def num_replicas_in_sync(self) -> int:
        """1: replication is inside the program."""
        return 1

    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Execute ``fn(*args, **kwargs)`` on the device; its results as host arrays."""
        if not isinstance(fn, Function):
            fn = self._functions.setdefault(fn, Function(fn))
        return fn.execute(tuple(args), dict(kwargs or {}))

    experimental_run_v2 = run


IPUStrategy = IPUStrategyV1
