"""Small helpers that addons programs import. (The module name is upstream's.)

Source: popxl-addons: popxl_addons/utils.py.
"""

from __future__ import annotations

import collections
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np

from ipuperf.frontends.popxl import Variable, dtype
from ipuperf.frontends.popxl.arguments import checked_arguments

K = TypeVar("K")
V = TypeVar("V")


@contextmanager
def null_context() -> Iterator[None]:
    """A context that does nothing."""
    yield


@checked_arguments
def suffix_graph_name(name: str, suffix: str) -> str:
    """A graph's name without ``_subgraph(k)``, and ``_suffix``: the new graph's own number follows."""
    stem = re.sub(r"_subgraph\(\d+\)", "", name)
    return f"{stem}_{suffix}"


@checked_arguments
def overrides(child: type, parent: type, method: str) -> bool:
    """Whether ``child`` has another ``method`` than ``parent``."""
    return getattr(child, method) is not getattr(parent, method)


def duplicate_items(items: Iterable[K]) -> list[K]:
    """Those of ``items`` that are there more than once, each once, in order."""
    return [element for element, count in collections.Counter(items).items() if count > 1]


@checked_arguments
@contextmanager
def timer(title: str | None = None, log_to_wandb: bool = True) -> Iterator[None]:
    """Log how long the block took, in minutes of the run's clock, at level INFO.

    Args:
        log_to_wandb: where the program has imported Weights & Biases and a run is active, also put the minutes into
            its summary, as ``<title in lower case, words joined by _>_mins``.
    """
    start = time.perf_counter()
    logging.info("Starting %s", title or "")
    yield
    minutes = (time.perf_counter() - start) / 60
    logging.info("%s: %.2f mins", f"{title} duration" if title else "Duration", minutes)
    run = getattr(sys.modules.get("wandb"), "run", None)
    if log_to_wandb and title and run is not None:
        run.summary[f"{title.lower().replace(' ', '_')}_mins"] = minutes


class OrderedDict(collections.OrderedDict[K, V], Generic[K, V]):
    """A dictionary whose values can be had by position; it prints one entry a line."""

    @checked_arguments
    def idx(self, idx: int) -> V:
        """Value number ``idx``, in order of insertion; IndexError when there is none."""
        return list(self.values())[idx]

    def __repr__(self) -> str:
        lines = "".join(f"{key}: {value},\n" for key, value in self.items())
        return f"{{\n{lines}}}" if lines else "{}"


class WeightsDict(MutableMapping[Variable, np.ndarray]):
    """Host data of variables, for ``Session.write_variables_data``; each array is checked when it is put in.

    Raises:
        ValueError: an array of another type than its variable, or not of its ``shape_on_host``.
    """

    @checked_arguments
    def __init__(self, data: Mapping[Variable, np.ndarray] | Iterable[tuple[Variable, np.ndarray]] = ()) -> None:
        self.dict: dict[Variable, np.ndarray] = {}
        self.update(data)

    def __getitem__(self, key: Variable) -> np.ndarray:
        return self.dict[key]

    def __setitem__(self, key: Variable, value: np.ndarray) -> None:
        element_type = dtype.as_dtype(value.dtype)
        if key.dtype != element_type:
            raise ValueError(f"{key}: tensor and weight dtypes differ: {key.dtype} and {element_type}")
        if key.shape_on_host != value.shape:
            raise ValueError(f"{key}: tensor and weight shapes differ: {key.shape_on_host} and {value.shape}")
        self.dict[key] = value

    def __delitem__(self, key: Variable) -> None:
        del self.dict[key]

    def __len__(self) -> int:
        return len(self.dict)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.dict)


__all__ = ["OrderedDict", "WeightsDict", "duplicate_items", "null_context", "overrides", "suffix_graph_name", "timer"]
