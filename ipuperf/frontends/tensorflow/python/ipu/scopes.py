"""Scopes: which device a program is for, and on which shard (IPU of the replica) ops are placed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds
from ipuperf.runtime.replacing import replaced

from ...effects import EFFECTS
from ...importer.attributes import SHARD, written
from ...importer.tracer import resource_variables
from ...state import state


@contextmanager
def ipu_scope(device: str) -> Iterator[str]:
    """Programs compiled in the block are for ``/device:IPU:<n>``; variables are resource variables.

    Raises:
        ValueError: another device name.
    """
    with (
        replaced(state(), device=ordinal_of(device)),
        resource_variables(),
        tf.compat.v1.variable_scope(tf.compat.v1.get_variable_scope(), use_resource=True, auxiliary_name_scope=False),
    ):
        yield device


@checked_kinds()
def ordinal_of(device: str) -> int:
    """The number of a device such as ``/device:IPU:0``.

    Raises:
        ValueError: another device name.
    """
    found = re.fullmatch(r".*device:IPU:(\d+)", str(device), re.IGNORECASE)
    if found is None:
        raise ValueError(f"ipu_scope({device!r}): a device such as '/device:IPU:0' is needed")
    return int(found[1])


@contextmanager
def ipu_shard(index: Any) -> Iterator[None]:
    """Ops of the block are on shard ``index`` of the replica; operands from elsewhere are copied there.

    Raises:
        NotImplementedError: several shards at once; ValueError: no shard number.
    """
    if isinstance(index, (list, tuple)):
        raise NotImplementedError(f"ipu_shard({index!r}): one op on several IPUs is not supported; give one index")
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"ipu_shard({index!r}): the number of a shard is needed, 0 or larger")
    with written(SHARD, index):
        yield


@checked_kinds()
@contextmanager
def frontend_attribute(attribute_name: str, attribute_value: str, restore_to: str | None = None) -> Iterator[None]:
    """An attribute for the Poplar compiler: it is written on the ops of the block, which run as without it."""
    EFFECTS.given("ipu.scopes.frontend_attribute(attribute_value)", attribute_value)
    EFFECTS.given("ipu.scopes.frontend_attribute(restore_to)", restore_to)
    with written(f"_ipu_frontend_{attribute_name}", attribute_value):
        yield


@contextmanager
def stochastic_rounding(override: Any) -> Iterator[None]:
    """Whether float16 results of the block are rounded stochastically: they are rounded to the nearest value."""
    EFFECTS.given("ipu.scopes.stochastic_rounding(override)", override)
    yield


@contextmanager
def partials_type(override_type: Any) -> Iterator[None]:
    """Type of the partial sums of the block's products: they are those of ``IPUConfig``.

    Raises:
        ValueError: another type than float16 and float32.
    """
    if tf.as_dtype(override_type) not in (tf.float16, tf.float32):
        raise ValueError(f"Only support float16, float32, provided {tf.as_dtype(override_type).name}")
    EFFECTS.given("ipu.scopes.partials_type(override_type)", override_type)
    yield


@contextmanager
def ipu_jit_scope(ipu_scope: Any) -> Iterator[None]:
    """Ops that are compiled together: all ops of a program are."""
    EFFECTS.given("ipu.scopes.ipu_jit_scope(ipu_scope)", ipu_scope)
    yield


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Host computation in the middle of a program: not available."""
    raise NotImplementedError(
        f"outside_compilation_scope({name!r}): programs here cannot call the host in the middle of a run"
    )
    yield


__all__ = [
    "frontend_attribute",
    "ipu_jit_scope",
    "ipu_scope",
    "ipu_shard",
    "outside_compilation_scope",
    "partials_type",
    "stochastic_rounding",
]
