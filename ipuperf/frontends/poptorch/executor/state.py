"""What a model on simulated IPUs is: its module, its options, its optimiser, and the program once there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ipuperf.ir import FLOAT16

from ..errors import Error, UnsupportedError, require
from ..export.checks import check_not_compiled
from ..optimisers import classes as optim
from ..optimisers.classes import OptimiserSpec, optimiser_description
from ..options import Options
from .calls import ExecutableInputs
from .compilation import CompiledModel
from .wrapping import Ties

_NOT_COMPILED = "Model has not been compiled or has been destroyed."


class ExecutorState:
    """What all that a model does reads and writes."""

    _ties: Ties

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise Error(f"model is a {type(model).__name__}, expected torch.nn.Module")
        check_not_compiled(model)
        if options is not None and not isinstance(options, Options):
            raise Error(f"options is a {type(options).__name__}, expected poptorch.Options")
        self._model, self._mode = model, model.training
        if options is not None:
            options._freeze()  # what the program changes from now on would not reach this model
        self._options = Options() if options is None else options.clone()
        if self._options.defaultOutputMode():
            self._options.outputMode(self._options.resolved_output_mode(training))
        processes = self._options.Distributed.numProcesses
        if processes > 1:
            raise UnsupportedError(
                f"poptorch.Options().Distributed of {processes} processes is not supported for models: "
                "one process simulates all replicas; use one process and replicationFactor()"
            )
        self._training = training
        self._optimiser: OptimiserSpec | None = None
        self._optimizer: optim.Optimizer | None = None
        if training:
            given = _optimizer(model, optimizer)
            self._optimiser = optimiser_description(given)
            self._optimizer = given if isinstance(given, optim.Optimizer) else None
            self._options.Training._divide_while_running(self._optimiser.accum_dtype is FLOAT16)
        else:
            accumulation = self._options.Training.gradient_accumulation
            require(
                accumulation == 1,
                f"poptorch.Options().Training.gradientAccumulation is {accumulation}; an inference model accumulates "
                "nothing, so it has to be 1",
            )
        self._options._freeze()
        self._compiled: CompiledModel | None = None
        self._attached = False
        self._ran = False
        self._seen: dict[str, int] = {}
        self._warned = False
        self._renumbered = False
        self._anchored: dict[str, np.ndarray] = {}
        self._executable_inputs: ExecutableInputs | None = None
        self.per_replica_params: dict[str, Any] = {}
        """What ``replicaGrouping`` was told, by the parameters' names in the module; read by the compilation."""

    def _require(self) -> CompiledModel:
        if self._compiled is None:
            raise Error(_NOT_COMPILED)
        return self._compiled


def _optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01) if optimizer is None else optimizer
