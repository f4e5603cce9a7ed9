"""Where tensors are: within ``forward`` they say that they are on an IPU, as upstream's do, though an export runs with
stand-ins on the host. PyTorch's own Python code is told the truth.

Libraries choose ops of fixed shapes by it (``x.device.type == "ipu"``), and make tensors where others are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ipuperf.runtime.replacing import replaced

IPU = torch.device("ipu", 0)
_SHOWN = {"device": IPU, "get_device": IPU.index, "is_cpu": False, "is_ipu": True}
"""What a tensor says of itself, by attribute or method."""
_TOLD_THE_TRUTH = ("torch", "ipuperf")


def attribute_of(func: Any) -> str:
    """The name of the attribute that a call of PyTorch reads, or of the function itself."""
    name = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name


def read(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of ``func``, which only reads what a tensor is."""
    name = attribute_of(func)
    return _SHOWN[name] if name in _SHOWN and _is_of_the_program() else func(*args, **kwargs)


def _is_of_the_program() -> bool:
    """Whether the code that reads what the caller of this function answers is neither PyTorch's nor ours."""
    reader: FrameType | None = sys._getframe(2)
    while reader is not None and reader.f_code.co_name == "__torch_function__":
        reader = reader.f_back
    name = "" if reader is None else str(reader.f_globals.get("__name__", ""))
    return name.partition(".")[0] not in _TOLD_THE_TRUTH


def arguments_on(home: torch.device, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call with ``home``, where the stand-ins are, for the IPU."""
    if _is_ipu(kwargs.get("device")):
        kwargs = {**kwargs, "device": home}
    if any(isinstance(value, torch.device) for value in args) or func is torch.Tensor.to:
        args = tuple(home if _is_ipu(value) else value for value in args)
    return args, kwargs


def _is_ipu(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).partition(":")[0] == IPU.type


@contextmanager
def on_ipus(home: torch.device) -> Iterator[None]:
    """Within the block the stand-ins, which are on ``home``, say that they are on an IPU, and ``torch.autocast`` of the
    IPU casts what it would there: to float16, unless it says another type."""
    device, plain = FakeTensor.__dict__["device"].fget, torch.autocast.__init__

    def shown(tensor: Any) -> torch.device:
        return IPU if _is_of_the_program() else device(tensor)

    def begin(region: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **named: Any) -> None:
        if device_type == IPU.type:
            device_type, dtype = home.type, dtype or torch.float16
        plain(region, device_type, dtype, *args, **named)

    with replaced(torch.autocast, __init__=begin), replaced(FakeTensor, device=property(shown)):
        yield
