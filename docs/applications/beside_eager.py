"""Train a copy of each model of ``poptorch.trainingModel`` in PyTorch beside it, and print both losses.

:func:`watch` changes nothing of the program but this: dropout is off in both (its random numbers differ), and the calls
take longer. The copy is made at the first call, in float32, and sees the same data. Its optimiser is a copy of the
program's own, which takes the learning rates and so on that ``setOptimizer`` tells. Weights that are float16 in the
program are rounded to float16 after each update (to the nearest), as it asks for: less than half a step is lost.
A call's samples are its micro-batches, replica by replica (poptorch: python/_poplar_executor.py); gradients are their
mean, or sum where the options say so. They start at the last loss, as PopTorch's do: what a model computes from its
loss is not trained.

Output modes ``EveryN`` and ``Mean`` are not compared, nor are synthetic data and ops in C++ other than those of
:data:`OPS`. A ``forward`` that was set on an object stays bound to it: of such models (octave convolution as
``multi-octave``) a copy would use the weights of the original.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

STEPS = 5
"""So many weight updates are compared."""
LOSSES = [name for name in vars(torch.nn.functional) if name.endswith(("_loss", "cross_entropy", "kl_div"))]
"""What a model may compute its loss with."""


def _ctc(inputs: Any, given: Any) -> list[torch.Tensor]:
    """PopART's loss of all sequences; the gradients that it gives besides are not looked at."""
    logs, *others = inputs
    named = {"blank": given.get("blank", 0), "reduction": given.get("reduction", "Mean").lower()}
    return [torch.nn.functional.ctc_loss(logs, *(t.long() for t in others), **named), torch.zeros_like(logs)]


OPS: dict[str, Callable[[Any, Any], list[torch.Tensor]]] = {
    "CopyTensor": lambda inputs, _: [inputs[0]],
    "Ctc": _ctc,
    "ExpMovAvg": lambda inputs, _: [inputs[1]],
    "RemapCE": lambda inputs, _: [inputs[0]],
}
"""What ops of PopART and in C++ compute. ``ExpMovAvg`` averages before each weight update."""


def _mapped(value: Any, change: Any) -> Any:
    """``value`` with each tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    return type(value)(_mapped(item, change) for item in value) if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(value, found.append)
    return found


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor.clone()


def _float_here(half: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``Tensor.half`` that gives float32 in this thread; loaders of data run in others."""
    here = threading.get_ident()
    return lambda tensor, *args, **kwargs: (
        tensor.float() if threading.get_ident() == here else half(tensor, *args, **kwargs)
    )


class Twin:
    """A model and its optimiser, copied before the first call."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Any) -> None:
        for part in module.modules():  # a weight that weight_norm has computed will be computed again
            computed = {key: each for key, each in vars(part).items() if isinstance(each, torch.Tensor)}
            vars(part).update({key: each.detach() for key, each in computed.items() if not each.is_leaf})
        self.module, self.optimizer = copy.deepcopy((module, optimizer))
        for own, part in zip(self.module.modules(), module.modules(), strict=True):
            # What a copy leaves out, such as Lightning's trainer, it shares.
            vars(own).update({key: each for key, each in vars(part).items() if vars(own).get(key) is None})
        self.rounded = [own for own in self.module.parameters() if own.dtype == torch.float16]
        self.module.float()
        self.options, self.losses, self.steps, self.ends = options, [], 0, []
        self.averages: dict[int, tuple[torch.Tensor, ...]] = {}
        self.optimizer.zero_grad()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the numbers of the program's optimiser."""
        for own, other in zip(self.optimizer.param_groups, optimizer.param_groups, strict=True):
            own.update({key: value for key, value in other.items() if key != "params"})

    def noting(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """A function of losses that tells the twin what it gives."""

        def loss_of(*args: Any, **kwargs: Any) -> torch.Tensor:
            self.losses.append(function(*args, **kwargs))
            return self.losses[-1]

        return loss_of

    def call(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Train as one call does: what each sample of its micro-batches gives, ``(micro-batches, replicas, ...)``."""
        replicas, accumulated = self.options.replication_factor, self.options.Training.gradient_accumulation
        count = self.options.device_iterations * accumulated * replicas
        mean = self.options.Training.accumulation_and_replication_reduction_type.name == "Mean"
        given, rows = (args, kwargs), []
        for number in range(count):

            def part(tensor: torch.Tensor, number: int = number) -> torch.Tensor:
                return _wide(tensor.chunk(count)[number] if tensor.dim() else tensor)

            own_args, own_kwargs = _mapped(given, part)
            self.losses.clear()
            with ExitStack() as changes:
                changes.enter_context(patch.object(torch.Tensor, "half", _float_here(torch.Tensor.half)))
                for name in LOSSES:
                    function = getattr(torch.nn.functional, name)
                    changes.enter_context(patch.object(torch.nn.functional, name, self.noting(function)))
                results = _tensors(self.module(*own_args, **own_kwargs))
            loss = self.losses[-1] if self.losses else [each for each in results if each.requires_grad][-1]
            self.ends = [each is loss for each in results]
            (loss.sum() / (accumulated * replicas if mean else 1)).backward()
            rows.append([each.detach().float() for each in results])
            if (number + 1) % (accumulated * replicas) == 0:
                with torch.no_grad():
                    for weight, mean, share in self.averages.values():
                        mean.mul_(share).add_(weight * (1 - share))
                self.optimizer.step()
                for weight in self.rounded:
                    weight.data.copy_(weight.data.half())
                self.optimizer.zero_grad()
                self.steps += 1
        return [torch.stack(column).unflatten(0, (-1, replicas)) for column in zip(*rows, strict=True)]


def _returned(column: torch.Tensor, mode: str) -> torch.Tensor | None:
    """What comes back of ``(micro-batches, replicas, ...)``."""
    if mode == "All":
        return column.flatten()
    return {"Final": lambda: column[-1], "Sum": lambda: column.sum(0)}.get(mode, lambda: None)()


def _say(step: int, here: torch.Tensor, there: torch.Tensor) -> None:
    """Print the mean of a loss on both sides, and the largest difference."""
    here, there = here.detach().float().flatten(), there.flatten()
    difference = (here - there).abs().max().item()
    print(
        f"eager: update {step}: loss {here.mean().item():.6f}, PyTorch {there.mean().item():.6f}, "
        f"difference {difference:.1e}",
        file=sys.stderr,
        flush=True,
    )


def watch() -> None:
    """Compare every training model of this process."""
    import ipuperf

    ipuperf.install()
    import poptorch

    from ipuperf.frontends.poptorch.executor.poplar import PoplarExecutor

    current: list[Twin] = []
    twins: dict[int, Twin] = {}
    plain_call, plain_set, plain_loss = PoplarExecutor.__call__, PoplarExecutor.setOptimizer, poptorch.identity_loss
    plain_op = poptorch.custom_op

    def dropout(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x

    torch.nn.functional.dropout = torch.dropout = dropout  # type: ignore[assignment]
    plain_init = PoplarExecutor.__init__
    optimizers: dict[int, torch.optim.Optimizer] = {}

    def init(self: Any, model: Any, options: Any, *, training: bool, optimizer: Any = None) -> None:
        if training:
            optimizers[id(self)] = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
            optimizer = optimizers[id(self)]
            for module in model.modules():
                for name in ("dropout_p", "drop_prob"):  # of attention and of paths
                    if isinstance(getattr(module, name, None), float):
                        setattr(module, name, 0.0)
        plain_init(self, model, options, training=training, optimizer=optimizer)

    def set_optimizer(self: Any, optimizer: torch.optim.Optimizer) -> None:
        plain_set(self, optimizer)
        optimizers[id(self)] = optimizer
        if id(self) in twins:
            twins[id(self)].follow(optimizer)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._task.training:
            return plain_call(self, *args, **kwargs)
        if id(self) not in twins:
            twins[id(self)] = Twin(self._task.module, optimizers[id(self)], self.options)
        twin = twins[id(self)]
        if twin.steps >= STEPS:
            return plain_call(self, *args, **kwargs)
        args, kwargs = _mapped((args, kwargs), torch.Tensor.clone)
        current.append(twin)
        try:
            there = twin.call(args, kwargs)
        finally:
            current.pop()
        results = plain_call(self, *args, **kwargs)
        mode = self.options.resolved_output_mode(True).name
        for here, column, ends in zip(_tensors(results), there, twin.ends, strict=True):
            expected = _returned(column, mode)
            if expected is None:
                print(f"eager: output mode {mode} is not compared", file=sys.stderr)
            elif (column.dim() == 2 or ends) and here.is_floating_point() and here.numel() == expected.numel():
                _say(twin.steps, here, expected)
        return results

    def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
        return (current[-1].noting(plain_loss) if current else plain_loss)(x, reduction)

    def custom_op(inputs: Any, name: str, *args: Any, attributes: Any = None, **kwargs: Any) -> Any:
        if not current or name not in OPS:
            return plain_op(inputs, name, *args, attributes=attributes, **kwargs)
        if name == "ExpMovAvg":
            current[-1].averages[id(inputs[1])] = tuple(inputs)
        return OPS[name](inputs, attributes or {})

    PoplarExecutor.__init__, PoplarExecutor.__call__ = init, call  # type: ignore[method-assign]
    PoplarExecutor.setOptimizer = set_optimizer  # type: ignore[method-assign]
    poptorch.identity_loss, poptorch.custom_op = identity_loss, custom_op
