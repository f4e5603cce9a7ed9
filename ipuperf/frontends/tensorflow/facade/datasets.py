"""How fast the host produces the elements of a dataset: measured in real time on the machine that runs ipuperf.

The result is a tensor of one JSON string (in graph mode: when a session runs it), as upstream: ``{"epochs":
[{"elements_processed", "total_bytes_processed", "time_elapsed" (seconds), "elements_per_second", "bandwidth" (10^9
bytes per second)}, ...]}``. Unlike upstream, wrong arguments are raised and not returned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.ops import script_ops

from ..effects import EFFECTS, checked_kinds
from ..programs.infeed import IPUInfeedQueue


@checked_kinds()
def dataset_benchmark(
    dataset: tf.data.Dataset,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Measure a dataset.

    Args:
        number_of_epochs: measurements, one after the other in one iteration of the dataset.
        elements_per_epochs: elements in each.
        print_stats: print a line per epoch.
        apply_debug_options: no effect.
        do_memcpy: copy each element into a buffer, as a stream to the device would.

    Raises:
        TypeError: no Dataset; ValueError: counts below 1; InvalidArgumentError: an element with an axis of length 0;
            OutOfRangeError: too few elements.
    """
    EFFECTS.given("ipu.dataset_benchmark.dataset_benchmark(apply_debug_options)", apply_debug_options)
    for name, value in (("number_of_epochs", number_of_epochs), ("elements_per_epochs", elements_per_epochs)):
        if value < 1:
            raise ValueError(f"Expected `{name}` to be at least 1, it is {value}.")
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"Expected `dataset` argument to be of type `tf.data.Dataset`, but got {dataset} instead.")

    def measured(elements: tf.data.Dataset) -> np.ndarray:
        iterator = iter(elements)
        epochs = [_measure(iterator, elements_per_epochs, do_memcpy) for _ in range(number_of_epochs)]
        if print_stats:
            _print(epochs)
        return np.array([json.dumps({"epochs": epochs})], object)

    if tf.executing_eagerly():
        return tf.constant(measured(dataset), tf.string)
    spec = dataset.element_spec
    report = script_ops.eager_py_func(
        lambda variant: measured(dataset_ops._VariantDataset(variant, spec)),
        [dataset._variant_tensor],
        Tout=tf.string,
        name="dataset_benchmark",
    )
    report.set_shape([1])
    return report


def _print(epochs: list[dict[str, float]]) -> None:
    """A line per epoch."""
    for number, epoch in enumerate(epochs):
        print(
            f"epoch {number}: {epoch['elements_processed']} elements in {epoch['time_elapsed']:.6f} s, "
            f"{epoch['elements_per_second']:.1f} elements/s, {epoch['bandwidth']:.3f} GB/s"
        )


@checked_kinds("infeed_queue")
def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """:func:`dataset_benchmark` of an infeed queue's dataset, from its first element.

    Raises:
        TypeError: no IPUInfeedQueue; otherwise as :func:`dataset_benchmark`.
    """
    if not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(
            "Expected `infeed_queue` argument to be of type `ipu.ipu_infeed_queue.IPUInfeedQueue`, but got "
            f"{infeed_queue} instead."
        )
    return dataset_benchmark(
        infeed_queue._dataset, number_of_epochs, elements_per_epochs, print_stats, False, do_memcpy
    )


def _measure(elements: Iterator[Any], count: int, copy: bool) -> dict[str, float]:
    buffers: dict[tuple[int, ...], np.ndarray] = {}
    total = 0
    start = time.perf_counter()
    for number in range(count):
        element = next(elements, None)
        if element is None:
            raise tf.errors.OutOfRangeError(
                None, None, f"the dataset ended after {number} of the {count} elements of an epoch; repeat() it"
            )
        for leaf in (t.numpy() for t in tf.nest.flatten(element)):
            if leaf.size == 0:
                raise tf.errors.InvalidArgumentError(
                    None, None, f"element {number} has a tensor of shape {leaf.shape}: an axis of length 0"
                )
            total += leaf.nbytes
            if copy:
                buffer = buffers.setdefault((*leaf.shape, leaf.dtype.num), np.empty(leaf.shape, leaf.dtype))
                np.copyto(buffer, leaf)
    elapsed = max(time.perf_counter() - start, 1e-9)
    return {
        "elements_processed": count,
        "total_bytes_processed": total,
        "time_elapsed": elapsed,
        "elements_per_second": count / elapsed,
        "bandwidth": total / 1e9 / elapsed,
    }
