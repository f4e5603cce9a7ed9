"""``poptorch.MultiConv``: convolutions that are one op, planned together (:mod:`ipuperf.ops.products.multi_conv`).

Source: poptorch: python/ops.py (MultiConv), source/popart_compiler (MultiConvBuilder). What is not said follows
PopLibs: ``lib/poplin/ConvPlan.cpp`` (MultiPlanOptions: a parallel plan, 50 reserved tiles, a back-off of 0.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from ipuperf.ir import FLOAT16, FLOAT32, Graph, IrError, Op
from ipuperf.ops.products.multi_conv import multi_conv_of

from .blocks import recorder
from .effects import EFFECTS
from .enums import MultiConvPlanType
from .errors import Error, InputError, require
from .log import logger

_PARTIALS = {torch.float32: FLOAT32, torch.float16: FLOAT16}


class MultiConv:
    """``with poptorch.MultiConv():`` the convolutions called within are one op, and so are their gradients.

    Options that are one value hold for each convolution, a list has one value for each, in the order of the calls. They
    change the plans of the convolutions and so their time. The convolutions must not need each other's results.
    """

    def __init__(self) -> None:
        self._proportions: tuple[float, ...] | None = None
        self._partials: tuple[torch.dtype, ...] | None = None
        self._planning: dict[str, Any] = {}

    def availableMemoryProportions(self, value: float | Sequence[float]) -> MultiConv:
        """The share of tile memory for temporary data of each convolution, above 0 and at most 1."""
        shares = _several(value)
        good = shares and all(isinstance(share, float) and 0 < share <= 1 for share in shares)
        require(good, f"Invalid available memory proportion! {value!r} given, expected floats above 0 and at most 1")
        self._proportions = shares
        return self

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> MultiConv:
        """The type of partial sums of each convolution; one narrower than the result is ignored, with a warning."""
        types = _several(value)
        if not types or any(kind not in _PARTIALS for kind in types):
            raise InputError(f"Invalid partials types. {value!r} given, expected torch.float or torch.half")
        self._partials = types
        return self

    def planType(self, value: MultiConvPlanType) -> MultiConv:
        """Whether they run side by side, each on tiles of its own (the default), or one after the other."""
        good = value is None or isinstance(value, MultiConvPlanType)
        require(good, f"Invalid plan type! {value!r} given, expected a member of poptorch.MultiConvPlanType")
        return self._plan("plan_type", None if value is None else value.name.lower())

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Tiles that a parallel plan keeps for each convolution but the largest (50 by default)."""
        whole = isinstance(value, int) and value >= 0
        require(whole, f"perConvReservedTiles: {value!r} given, expected an int that is not negative")
        return self._plan("per_conv_reserved_tiles", value)

    def cycleBackOff(self, value: float) -> MultiConv:
        """How much slower than with its fastest plan the largest convolution of a parallel plan may be for each of the
        others, so that it leaves them tiles (0.1, a tenth, by default)."""
        good = isinstance(value, float) and value >= 0
        require(good, f"cycleBackOff: {value!r} given, expected a float that is not negative")
        return self._plan("cycle_back_off", value)

    def enableConvDithering(self, value: bool | Sequence[bool]) -> MultiConv:
        """Whether each convolution begins on another tile."""
        switches = _several(value)
        if any(not isinstance(switch, bool) for switch in switches):
            raise InputError(f"enableConvDithering: {value!r} given, value must be bool or list of bools")
        EFFECTS.given("MultiConv.enableConvDithering(value)", any(switches))
        return self

    def _plan(self, name: str, value: Any) -> MultiConv:
        """Say something about the plan; None takes it back."""
        self._planning.pop(name, None)
        if value is not None:
            self._planning[name] = value
        return self

    def __enter__(self) -> None:
        tracing = recorder()
        if tracing is None:
            return
        if tracing.multi_conv is not None:
            raise Error("Nested poptorch.MultiConv is not supported")
        tracing.multi_convs.append(self)
        tracing.multi_conv = len(tracing.multi_convs) - 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tracing = recorder()
        if tracing is not None:
            tracing.multi_conv = None

    def apply(self, convolutions: Sequence[Op]) -> None:
        """Give the ``convolutions`` called within their options, and make one op of them (of those of each stage).

        Raises:
            Error: there are none, another number of them than of values of an option, or one needs the result of
                another.
        """
        if not convolutions:
            raise Error("Unexpected end_multi_conv: there is no convolution within poptorch.MultiConv")
        for share, op in zip(self._each("availableMemoryProportions", self._proportions, convolutions), convolutions):
            op.attributes["available_memory_proportion"] = share
        for kind, op in zip(self._each("partialsTypes", self._partials, convolutions), convolutions):
            op.attributes["partials_dtype"] = _PARTIALS[kind]
            if _PARTIALS[kind].size < op.outputs[0].dtype.size:
                logger.warning(
                    "%s: MultiConv.partialsTypes: ignoring %s, which is smaller than the output type %s",
                    op.where(),
                    kind,
                    op.outputs[0].dtype,
                )
        graphs: dict[Graph, list[Op]] = {}
        for op in convolutions:
            graphs.setdefault(op.graph, []).append(op)
        for ops in graphs.values():
            try:
                multi_conv_of(ops, **self._planning)
            except IrError as error:
                raise Error(f"poptorch.MultiConv: {error}") from error

    @staticmethod
    def _each(name: str, values: tuple[Any, ...] | None, convolutions: Sequence[Op]) -> tuple[Any, ...]:
        """A value of an option for each convolution; nothing where it is not given."""
        if values is None or len(values) == len(convolutions):
            return values or ()
        if len(values) == 1:
            return values * len(convolutions)
        counts = f"{len(values)} values for {len(convolutions)} convolutions"
        raise Error(f"MultiConv.{name}: {counts}; give one, or one for each")


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
