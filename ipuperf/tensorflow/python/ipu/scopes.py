"""Scopes: which device a program is for, and on which shard (IPU of the replica) ops are placed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ipuperf.ir import CONTEXT

from ...state import state


@contextmanager
def ipu_scope(device: str) -> Iterator[str]:
    """Programs compiled in the block are for ``/device:IPU:<n>``.

    Raises:
        ValueError: another device name.
    """
    found = re.fullmatch(r".*device:IPU:(\d+)", device, re.IGNORECASE)
    if found is None:
        raise ValueError(f"ipu_scope({device!r}): a device such as '/device:IPU:0' is needed")
    kept = state().device
    state().device = int(found[1])
    try:
        yield device
    finally:
        state().device = kept


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
    with CONTEXT.on_ipu(index):
        yield


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Host computation in the middle of a program: not available."""
    raise NotImplementedError(
        f"outside_compilation_scope({name!r}): programs here cannot call the host in the middle of a run"
    )
    yield
