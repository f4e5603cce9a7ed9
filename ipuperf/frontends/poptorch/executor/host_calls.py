"""``poptorch.CPU``: a function of the host in the middle of an inference program.

While a model is compiled a call becomes an op (:class:`~ipuperf.ops.HostCall`), whose results' shapes come
from the function itself, called with tensors without data or, where it needs some, with zeros. Which function it is
stands in no file: a program with such an op can be stored, and loaded where the same ``CPU`` object is.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ipuperf.functions import make_all
from ipuperf.ir import Tensor, TensorSpec
from ipuperf.ops.transfers.host_call import HostCall

from ..aten.lowering import Lowering, Value, ir_dtype
from ..blocks import recorder
from ..errors import Error, UnsupportedError


class _Call:
    """One call of a function: where among its arguments tensors stand, and what its results look like."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        self._function = function
        leaves, self._arguments = pytree.tree_flatten(arguments)
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [leaves[index] for index in self._places]
        self.results: Any = None
        self._like: list[torch.Tensor] | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results' tensors."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._arguments)
        outputs, self.results = pytree.tree_flatten(self._function(*args, **kwargs))
        if not outputs or not all(isinstance(output, torch.Tensor) for output in outputs):
            raise Error(f"poptorch.CPU: the function gave {outputs!r}, expected tensors")
        return outputs

    def like(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results for tensors without data; the function is called once, with zeros if it needs numbers."""
        if self._like is None:
            try:
                results = self(tensors)
            except Exception:
                with torch._subclasses.fake_tensor.unset_fake_temporarily():
                    results = self([torch.zeros(tuple(t.shape), dtype=t.dtype) for t in tensors])
            self._like = [torch.empty(tuple(t.shape), dtype=t.dtype, device="meta") for t in results]
        return [torch.empty(tuple(t.shape), dtype=t.dtype, device=tensors[0].device) for t in self._like]


#: Calls that stand in exported programs, kept as long as their ``CPU`` objects.
_CALLS: weakref.WeakValueDictionary[str, _Call] = weakref.WeakValueDictionary()


class CPU:
    """A function that the host calls in the middle of a program, for inference only.

    Args:
        layer_to_call: gets the arguments of each call, tensors of one replica's micro-batch among them; gives a tensor
            or a list or tuple of tensors.
        ID: its name in reports.

    Calling it outside of a program calls the function.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise Error(f"poptorch.CPU: {layer_to_call!r} given, expected a function or a module")
        if not isinstance(ID, str):
            raise Error(f"poptorch.CPU: ID {ID!r} given, expected a name")
        self.layer_to_call = layer_to_call
        self.ID = ID
        self._key = f"{ID}#{uuid.uuid4().hex}"  # so that no export of another object is taken for this one's
        self._calls: dict[str, _Call] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result.

        Raises:
            UnsupportedError: in a training program.
            Error: no tensor among the arguments (the host would have nothing to wait for), results that are none.
        """
        tracing = recorder()
        if tracing is None:
            return self.layer_to_call(*args, **kwargs)
        if tracing.training:
            raise UnsupportedError(f"poptorch.CPU ({self.ID}): CPU ops are only supported in inference graphs")
        call = _Call(self.layer_to_call, (args, kwargs))
        if not call.tensors:
            raise Error(f"poptorch.CPU ({self.ID}): a call needs a tensor among its arguments")
        key = f"{self._key}/{len(self._calls)}"
        self._calls[key] = _CALLS[key] = call
        results = torch.ops.ipuperf.host_call(call.tensors, key)
        # These tensors are stand-ins of the trace, which would live as long as the call.
        call.tensors = []
        return pytree.tree_unflatten(results, call.results)


@torch.library.custom_op("ipuperf::host_call", mutates_args=())
def _host_call(tensors: list[torch.Tensor], key: str) -> list[torch.Tensor]:
    # An op of torch.library must not return what it was given.
    return [result.clone() for result in _CALLS[key](tensors)]


@_host_call.register_fake
def _(tensors: list[torch.Tensor], key: str) -> list[torch.Tensor]:
    return _CALLS[key].like(tensors)


def host_call(low: Lowering, tensors: Sequence[Value], key: str) -> list[Tensor]:
    """The op in a program (see :mod:`~ipuperf.poptorch.aten.poptorch_ops`)."""
    call = _CALLS.get(key)
    title = key.partition("#")[0]
    if call is None:
        raise low.unsupported(f"the program calls the host's function {title!r}, which no file holds; compile it anew")
    operands = [low.tensor(t) for t in tensors]
    dtypes = [t.dtype.numpy for t in operands]
    specs = tuple(TensorSpec(shape, dtype) for shape, dtype in zip(low.shapes, low.dtypes, strict=True))

    def function(*arrays: np.ndarray) -> list[np.ndarray]:
        operands = [torch.from_numpy(np.array(a, kind)) for a, kind in zip(arrays, dtypes, strict=True)]
        with torch.no_grad():
            results = call(operands)
        for result, spec in zip(results, specs, strict=True):
            if tuple(result.shape) != spec.shape or ir_dtype(result.dtype, title) != spec.dtype:
                raise Error(
                    f"poptorch.CPU ({title}): gave {tuple(result.shape)} {result.dtype}, the program was compiled for "
                    f"{spec}"
                )
        return [t.detach().numpy().astype(spec.dtype.numpy) for t, spec in zip(results, specs, strict=True)]

    names = [f"{low.naming}_{number}" for number in range(len(specs))]
    return make_all(HostCall, operands, names, title=title, function=function, specs=specs)
