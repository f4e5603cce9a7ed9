"""The data of ``fit``, ``evaluate`` and ``predict``: what Keras makes of it, checked as the IPU needs it.

Upstream: ``keras: keras/ipu/extensions/data_adapter.py``. Shapes are known before the run, every batch is whole, and
the number of batches of an epoch is a multiple of the replicas' ``steps_per_execution``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tf_keras.src.engine import data_adapter

from ..programs.infeed import NOTHING, with_float32

if TYPE_CHECKING:
    from .extension import Extension


class Element:
    """The structure of a dataset's elements, which are fed as flat tuples of tensors.

    Args:
        specification: ``Dataset.element_spec``: ``x``, ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``.
    """

    def __init__(self, specification: Any) -> None:
        specification = tf.nest.map_structure(lambda spec: None if isinstance(spec, NOTHING) else spec, specification)
        self.specification = specification
        self.parts_specification = data_adapter.unpack_x_y_sample_weight(specification)
        self.flat = [spec for spec in tf.nest.flatten(specification) if spec is not None]

    def pack(self, tensors: Sequence[Any]) -> Any:
        """An element of the dataset from its flat tensors."""
        leaves = iter(tensors)
        flat = [None if spec is None else next(leaves) for spec in tf.nest.flatten(self.specification)]
        return tf.nest.pack_sequence_as(self.specification, flat)

    def parts(self, tensors: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Inputs, targets and sample weights (None: there are none) from flat tensors."""
        x, y, weights = data_adapter.unpack_x_y_sample_weight(self.pack(tensors))
        return x, y, weights

    def targets(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Targets and sample weights from their flat tensors."""
        _, y, weights = self.parts_specification
        leaves = iter(tensors)
        flat = [None if spec is None else next(leaves) for spec in tf.nest.flatten((y, weights))]
        # The targets arrive without the inputs, so they are packed by their part of the specification.
        y, weights = tf.nest.pack_sequence_as((y, weights), flat)
        return y, weights


class DataFeed:
    """A dataset on its way to the IPU.

    Attributes:
        element: structure of its elements.
        dataset: flat tuples of tensors.
    """

    def __init__(self, dataset: Any) -> None:
        self.element = Element(dataset.element_spec)
        # A feed has tensors only, so absent sample weights leave the element.
        self.dataset = dataset.map(_flat)

    def signature(self) -> tuple[Any, ...]:
        """What a program depends on: structure, shapes and types."""
        specification = self.element.specification
        flat = tuple((tuple(spec.shape), spec.dtype) for spec in self.element.flat)
        return repr(tf.nest.map_structure(lambda spec: spec is None, specification)), flat


def _flat(*element: Any) -> tuple[Any, ...]:
    return tuple(tensor for tensor in tf.nest.flatten(element) if tensor is not None)


class IPUDataHandler(data_adapter.DataHandler):
    """Keras' data handler, for models on the IPU. Its iterators are :class:`DataFeed` s.

    Raises:
        ValueError: generators, partial batches, shapes that are not known, too little data, or a number of batches that
            ``steps_per_execution`` does not divide.
    """

    def __init__(self, extension: Extension, x: Any, y: Any = None, **options: Any) -> None:
        self._extension = extension
        self.replicas = 1
        extension.tell_of_arrays(x, y)
        super().__init__(x, y, **options)
        extension.handler = self

    def _configure_dataset_and_inferred_steps(
        self, strategy: Any, x: Any, steps_per_epoch: int | None, class_weight: Any, distribute: bool
    ) -> None:
        if isinstance(self._adapter, data_adapter.GeneratorDataAdapter):
            raise ValueError(_generator_message(x))
        dataset = self._adapter.get_dataset()
        if class_weight:
            dataset = dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
        # The size of a batch is compiled in, so a smaller last batch has no program.
        if self._adapter.has_partial_batch():
            raise ValueError(
                "The provided set of data has a partial batch, which could result in data being dropped. Either adjust "
                f"the `batch_size` of your model (currently set to {self._adapter.batch_size()}) or pad your dataset "
                "to ensure there are no partial batches."
            )
        self._dataset = with_float32(dataset)
        _check_shapes(self._dataset)
        self._extension.build(data_adapter.unpack_x_y_sample_weight(self._dataset.element_spec)[0])
        # The number of replicas is known once the model is built, and the steps below are per replica.
        self.replicas = self._extension.replicas()
        self._inferred_steps = self._infer_steps(steps_per_epoch, self._dataset)
        self._check_size()
        self._validate_data_handler()

    @property
    def batch_size(self) -> int:
        """Samples in a batch of one replica."""
        size = self._adapter.batch_size()
        return int(tf.nest.flatten(self._dataset.element_spec)[0].shape[0] if size is None else size)

    @property
    def steps_per_execution(self) -> int:
        """Batches in one run of the program, on each replica: as compiled, at most an epoch."""
        return min(self._steps_per_execution.numpy().item(), self._inferred_steps)

    def _infer_steps(self, steps: int | None, dataset: Any) -> int:
        """Steps of an epoch on each replica."""
        batches = super()._infer_steps(steps, dataset)
        if batches is None:
            raise ValueError("Could not infer the size of the data. You must specify the number of steps to run.")
        dropped = batches % self.replicas
        # A negative cardinality stands for infinite or unknown data, from which nothing is dropped.
        if dropped and dataset.cardinality() >= 0:
            tf.get_logger().warning(
                f"Dataset of length {batches} is being evenly distributed between {self.replicas} replicas. The "
                f"remaining {dropped} batch{'es' if dropped > 1 else ''} will be dropped."
            )
        return int(batches) // self.replicas

    def _check_size(self) -> None:
        """The dataset is known to be large enough, or its size is not known."""
        size = int(self._dataset.cardinality())
        if size == tf.data.UNKNOWN_CARDINALITY:
            tf.get_logger().info(
                "How many batches the data have is unknown; an execution fails where they end too early."
            )
        elif size != tf.data.INFINITE_CARDINALITY:
            # Data that are not begun again have to last for all epochs.
            epochs = 1 if self._adapter.should_recreate_iterator() else self._epochs - self._initial_epoch
            needed = epochs * self._inferred_steps * self.replicas
            if needed > size:
                raise ValueError(
                    "Your input does not have enough data. Make sure that your dataset or generator can generate at "
                    f"least {needed} batches (currently it can only generate {size} batches). You may need to use the "
                    "repeat() function when building your dataset."
                )

    def _validate_data_handler(self) -> None:
        compiled, steps = self._steps_per_execution.numpy().item(), self._inferred_steps
        to_replica = " to this replica" if self.replicas > 1 else ""
        if steps == 0:
            raise ValueError(
                f"The provided dataset contains fewer batches than the {self.replicas} replicas take in one step. Make "
                f"sure the dataset contains at least {self.replicas} batches."
            )
        if compiled > steps:
            tf.get_logger().warning(
                f"`steps_per_execution` has been set to {compiled} but the dataset provided{to_replica} only contains "
                f"{steps} batches. Using {steps} as `steps_per_execution`."
            )
        elif steps % compiled:
            raise ValueError(
                "`steps_per_execution` must be a divisor of the number of batches in the dataset provided"
                f"{to_replica}. It is {compiled}, and there are {steps} batches in an epoch."
            )

    def enumerate_epochs(self) -> Iterator[tuple[int, DataFeed]]:
        """Epochs with the data they take."""
        with self._truncate_execution_to_epoch():
            feed = DataFeed(self._dataset)
            try:
                for epoch in range(self._initial_epoch, self._epochs):
                    if epoch > self._initial_epoch and self._adapter.should_recreate_iterator():
                        feed = DataFeed(self._dataset)
                    self._extension.before_epoch(self)
                    yield epoch, feed
                    self._adapter.on_epoch_end()
            finally:
                # The queue reads ahead in threads, which have to end also when a callback stops the run.
                self._extension.stop_feeding(feed)

    def steps(self) -> Iterator[int]:
        """First batches of the executions of an epoch; with asynchronous callbacks every batch."""
        if not self._extension.calls_every_step():
            yield from super().steps()
            return
        self._step_increment = 0
        start: int = self._initial_step  # type: ignore[has-type]
        self._initial_step = 0
        for step in range(start, self._inferred_steps):
            self._current_step = step
            yield step

    def catch_stop_iteration(self) -> Any:
        """Data that run out in an execution are an error."""
        # Elsewhere running out of data ends an epoch; a program is compiled for all its steps.
        return nullcontext()


def _check_shapes(dataset: Any) -> None:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, NOTHING) and not spec.shape.is_fully_defined():
            raise ValueError(
                f"The provided set of data contains a shape {spec.shape} which is not fully defined. Executing on IPU "
                "requires all dataset elements to have fully defined shapes. If using batch() make sure to set "
                "`drop_remainder=True`."
            )


def _generator_message(x: Any) -> str:
    hint = "use `tf.data.Dataset.from_generator()` to specify the shape of your data."
    if hasattr(x, "__next__") and not hasattr(x, "send"):
        hint = (
            "wrap your iterator inside a generator like so:\n\ndef generator:\n    while True:\n"
            f"        yield next(iterator)\n\nand {hint}"
        )
    return (
        f"The provided set of data is of type `{type(x).__name__}` which is not compatible with the IPU's requirement "
        f"to know the data shape ahead of time. Please {hint}"
    )
