"""Training steps on all cores: seconds of the wall against eager PyTorch with as many threads, and what the calling
thread is left with.

On a machine with other work the wall says how both get along with it. The calling thread's CPU seconds on two threads,
by those on one, say how much of a step is shared out: 0.5 is all of it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch_models
from bounds import Row

from ipuperf.base.cores import cores

Step = Callable[[], object]

MODELS: Mapping[str, Callable[[], tuple[Step, Step]]] = MappingProxyType(
    {
        "MNIST CNN, float32": lambda: torch_models.cnn(torch_models.MnistCnn, 1, 28),
        "ResNet-18 (CIFAR), float32": lambda: torch_models.cnn(torch_models.ResNet18, 3, 32),
        "tiny BERT, float32": lambda: torch_models.tiny_bert("32.32"),
        "tiny BERT, float16": lambda: torch_models.tiny_bert("16.16"),
    }
)
SHARED = MappingProxyType({"ResNet-18 (CIFAR), float32": 0.75, "tiny BERT, float16": 0.8})
"""Models whose steps are large enough to be shared out."""
ALL, TWO = "step on all cores: {}", "calling thread of two: {}"
BOUNDS = {**{ALL.format(name): 1.0 for name in MODELS}, **{TWO.format(name): bound for name, bound in SHARED.items()}}


def _timed(clock: Callable[[], float], steps: tuple[Step, Step], repeats: int) -> tuple[float, float]:
    """Median seconds of two functions run in turns, after one run of each that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 1):
        for step, seconds in zip(steps, times):
            start = clock()
            step()
            if turn:
                seconds.append(clock() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def _on(threads: int, name: str) -> tuple[Step, Step]:
    """A step here on so many threads, compiled, and PyTorch's."""
    os.environ["IPUPERF_THREADS"] = str(threads)
    torch.manual_seed(0)
    step, eager = MODELS[name]()
    step()
    return step, eager


def rows(repeats: int) -> list[Row]:
    """A row for each model on all cores, and for the large ones the calling thread's share."""
    torch_models.prepare()
    torch.set_num_threads(cores())
    measured = []
    for name in MODELS:
        ours, eager = _timed(time.perf_counter, _on(cores(), name), min(repeats, 5))
        measured.append(Row(ALL.format(name), ours, "PyTorch eager, float32, as many threads", eager))
    for name in SHARED:
        two, one = _timed(time.thread_time, (_on(2, name)[0], _on(1, name)[0]), min(repeats, 5))
        measured.append(Row(TWO.format(name), two, "on one thread", one))
    return measured
