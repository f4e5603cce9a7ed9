"""``serving``: models exported for TensorFlow Serving (upstream: tensorflow/python/ipu/serving.py).

Upstream's SavedModel holds an executable and an op that runs it. Here it holds TensorFlow's ops, with the variables
as constants, so plain TensorFlow and TensorFlow Serving answer with it. What is returned runs on the simulated IPU, and
a call takes simulated time: one batch is a run of its own, of one iteration, or of a whole pipeline whose other batches
are zeros (upstream's runtime fills a pipeline with such batches when no more requests come).
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from ..effects import checked_kinds
from ..programs.infeed import IPUInfeedQueue
from ..programs.outfeed import IPUOutfeedQueue
from .pipelines import pipeline
from .strategies import IPUStrategyV1

Specs = list[tf.TensorSpec]


@checked_kinds()
def export_single_step(
    predict_step: Callable[..., Any],
    export_dir: str,
    iterations: int,
    predict_step_signature: Sequence[Any] | None = None,
    input_dataset: Any = None,
    output_names: Any = None,
    preprocessing_step: Callable[..., Any] | None = None,
    preprocessing_step_signature: Sequence[Any] | None = None,
    postprocessing_step: Callable[..., Any] | None = None,
    postprocessing_step_signature: Sequence[Any] | None = None,
    purge_export_dir: bool = False,
) -> Callable[..., Any]:
    """Write a SavedModel of a function into ``export_dir``.

    Args:
        iterations: upstream's loop makes so many before it begins again; a call of what is returned is one.
        predict_step_signature, preprocessing_step_signature, postprocessing_step_signature: a ``TensorSpec`` for each
            argument, where the function is no ``tf.function`` that says so itself.
        input_dataset: data like the arguments of the first step, in place of its signature.
        output_names: names of the results; otherwise ``output_0`` and so on.
        preprocessing_step, postprocessing_step: what the host computes before and after.
        purge_export_dir: empty the directory first.

    Returns:
        The function as it is exported, on the IPU.

    Raises:
        ValueError: a directory with files in it, no signature or two, names that do not fit; TypeError: a signature of
        something else.
    """
    _check_iterations(iterations)
    path = _emptied(export_dir, purge_export_dir)
    before = _Step.of(preprocessing_step, "preprocessing_step", preprocessing_step_signature, input_dataset)
    own_data = input_dataset if before is None else None
    step = _Step.of(predict_step, "predict_step", predict_step_signature, own_data)
    after = _Step.of(postprocessing_step, "postprocessing_step", postprocessing_step_signature, None)
    assert step is not None
    on_device = tf.function(step.frozen, jit_compile=True)
    return _export(path, [before, step, after], lambda *data: _strategy().run(on_device, data), output_names)


@checked_kinds("pipeline_schedule", "poplar_options")
def export_pipeline(
    computational_stages: Sequence[Callable[..., Any]],
    export_dir: str,
    iterations: int,
    inputs: Sequence[Any] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: Any = None,
    poplar_options: Any = None,
    name: str | None = None,
    predict_step_signature: Sequence[Any] | None = None,
    input_dataset: Any = None,
    output_names: Any = None,
    preprocessing_step: Callable[..., Any] | None = None,
    preprocessing_step_signature: Sequence[Any] | None = None,
    postprocessing_step: Callable[..., Any] | None = None,
    postprocessing_step_signature: Sequence[Any] | None = None,
    purge_export_dir: bool = False,
) -> Callable[..., Any]:
    """Write a SavedModel of a pipeline: :func:`export_single_step` of several stages.

    Args:
        iterations: batches of one run of the pipeline.
        inputs: arguments of the first stage before those that are data.
        device_mapping, pipeline_schedule, poplar_options, name: as of ``pipelining_ops.pipeline``.
        predict_step_signature: of the first stage, with or without ``inputs``.
    """
    # Checked before the directory is emptied.
    _check_iterations(iterations)
    if not computational_stages:
        raise ValueError("computational_stages is empty; allowed: one function or more")
    path = _emptied(export_dir, purge_export_dir)
    constants = [tf.convert_to_tensor(value) for value in inputs or ()]
    before = _Step.of(preprocessing_step, "preprocessing_step", preprocessing_step_signature, input_dataset)
    own_data = input_dataset if before is None else None
    first = _Step.of(computational_stages[0], "predict_step", predict_step_signature, own_data, constants)
    after = _Step.of(postprocessing_step, "postprocessing_step", postprocessing_step_signature, None)
    whole = _Stages(first, computational_stages[1:], constants)
    infeed = IPUInfeedQueue(_one_batch([tf.zeros(spec.shape, spec.dtype) for spec in whole.signature], iterations))
    outfeed = IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        pipeline(
            computational_stages=[stage.frozen for stage in whole.stages],
            gradient_accumulation_count=iterations,
            inputs=constants,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
            device_mapping=device_mapping,
            pipeline_schedule=pipeline_schedule,
            forward_propagation_stages_poplar_options=poplar_options,
            name=name,
        )

    def run(*batch: Any) -> Any:
        infeed.replace_dataset(_one_batch(batch, iterations))
        _strategy().run(program)
        return tf.nest.map_structure(lambda result: result[0], outfeed.dequeue())

    return _export(path, [before, whole, after], run, output_names)


def _one_batch(batch: Sequence[tf.Tensor], iterations: int) -> tf.data.Dataset:
    """A batch and zeros after it, as many as a run of the pipeline takes."""
    rows = [[value] + [tf.zeros_like(value)] * (iterations - 1) for value in batch]
    return tf.data.Dataset.from_tensor_slices(tuple(map(tf.stack, rows)))


@checked_kinds()
def export_keras(
    model: Any,
    export_dir: str,
    batch_size: int | None = None,
    output_names: Any = None,
    preprocessing_step: Callable[..., Any] | None = None,
    preprocessing_step_signature: Sequence[Any] | None = None,
    postprocessing_step: Callable[..., Any] | None = None,
    postprocessing_step_signature: Sequence[Any] | None = None,
    purge_export_dir: bool = False,
) -> Callable[..., Any]:
    """Write a SavedModel of a Keras model, which must be built, into ``export_dir``: :func:`export_single_step` of its
    ``call``. Where the model is pipelined, a call of what is returned is a run of ``steps_per_execution`` batches with
    the weights that the model has then; otherwise the weights are those of the export.

    Args:
        batch_size: of the exported model, where the model's own inputs leave it open.
    """
    if not model.built:
        raise ValueError(f"model {model.name!r} is not built: call build with the shapes of its inputs first")
    path = _emptied(export_dir, purge_export_dir)
    before = _Step.of(preprocessing_step, "preprocessing_step", preprocessing_step_signature, None)
    after = _Step.of(postprocessing_step, "postprocessing_step", postprocessing_step_signature, None)
    structure, signature = _inputs(model, batch_size)

    def call(*data: Any) -> Any:
        return model(tf.nest.pack_sequence_as(structure, data), training=False)

    step = _Step(call, signature)
    on_device = tf.function(step.frozen, jit_compile=True)

    def run(*data: Any) -> Any:
        if not any(each.pipeline_stage is not None for each in model.get_pipeline_stage_assignment()):
            return _strategy().run(on_device, data)
        steps, size = int(model._steps_per_execution or 1), int(data[0].shape[0])
        filled = [
            tf.concat([batch, tf.zeros([(steps - 1) * size, *batch.shape[1:]], batch.dtype)], 0) for batch in data
        ]
        results = model.predict(tf.nest.pack_sequence_as(structure, filled), batch_size=size, verbose=0)
        return tf.nest.map_structure(lambda result: tf.constant(result[:size]), results)

    return _export(path, [before, step, after], run, output_names)


class _Step:
    """A function with the variables that it reads as constants.

    Attributes:
        signature: of its arguments; results: of what it gives.
    """

    def __init__(self, function: Callable[..., Any], signature: Specs) -> None:
        traced = tf.function(lambda *data: function(*data), input_signature=signature)
        self.signature = signature
        self._frozen = convert_variables_to_constants_v2(traced.get_concrete_function())
        self.results: Specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self._frozen.outputs]

    def frozen(self, *data: Any) -> Any:
        """Its results, a flat list."""
        return self._frozen(*(tf.convert_to_tensor(each, spec.dtype) for each, spec in zip(data, self.signature)))

    @staticmethod
    def of(
        function: Any, name: str, signature: Sequence[Any] | None, dataset: Any, constants: Sequence[tf.Tensor] = ()
    ) -> _Step | None:
        """A step from what was given for it; ``constants`` are its first arguments."""
        if function is None:
            return None
        if signature is not None and dataset is not None:
            raise ValueError(f"{name} has a signature and input_dataset says another: give one of them")
        declared = getattr(function, "input_signature", None)
        specs = signature
        if dataset is not None:
            element = dataset.element_spec
            specs = element if isinstance(element, tuple) else (element,)
        specs = declared if specs is None else specs
        if not specs:
            raise ValueError(
                f"{name} needs the shapes of its arguments: give {name}_signature, or make it a tf.function "
                "with an input_signature"
            )
        if not isinstance(specs, (list, tuple)) or not all(isinstance(each, tf.TensorSpec) for each in specs):
            raise TypeError(f"{name}_signature must be a list of tf.TensorSpec, got {specs!r}")
        names = list(inspect.signature(getattr(function, "python_function", function)).parameters)
        if len(specs) + len(constants) == len(names):
            specs = [*(tf.TensorSpec(each.shape, each.dtype) for each in constants), *specs]
        if len(specs) != len(names):
            raise ValueError(f"{name} has the arguments {', '.join(names)}, and {len(specs)} of them have shapes")
        return _Step(function, [tf.TensorSpec(each.shape, each.dtype, name=n) for each, n in zip(specs, names)])


class _Stages(_Step):
    """All stages of a pipeline as one step; ``constants`` are the first arguments of the first stage."""

    def __init__(
        self, first: _Step | None, later: Sequence[Callable[..., Any]], constants: Sequence[tf.Tensor]
    ) -> None:
        assert first is not None
        self.stages, self._constants = [first], constants
        for function in later:
            self.stages.append(_Step(function, self.stages[-1].results))
        self.signature, self.results = first.signature[len(constants) :], self.stages[-1].results

    def frozen(self, *data: Any) -> Any:
        values: Any = (*self._constants, *data)
        for stage in self.stages:
            values = stage.frozen(*values)
        return values


def _inputs(model: Any, batch_size: int | None) -> tuple[Any, Specs]:
    """The structure of a model's inputs, and their signature."""
    structure = model.input if model.inputs and hasattr(model, "input") else None
    if structure is None:
        raise ValueError(f"model {model.name!r} has no inputs of known shapes: call it, or build it from layers")
    signature = []
    for number, tensor in enumerate(tf.nest.flatten(structure)):
        size = tensor.shape[0] or batch_size
        if size is None or batch_size not in (None, size):
            raise ValueError(f"model {model.name!r} has batches of {tensor.shape[0]}, and batch_size is {batch_size}")
        name = tensor.name.partition(":")[0].replace("/", "_") if hasattr(tensor, "name") else f"input_{number}"
        signature.append(tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype, name=name))
    return structure, signature


def _check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")


def _emptied(directory: str, purge: bool) -> Path:
    path = Path(directory)
    if path.is_dir() and any(path.iterdir()):
        if not purge:
            raise ValueError(f"there are files in {directory!r}: name another directory, or give purge_export_dir=True")
        shutil.rmtree(path)
    return path


def _strategy() -> Any:
    """The strategy whose scope this is, or one of its own."""
    current = tf.distribute.get_strategy()
    return current if isinstance(current, IPUStrategyV1) else IPUStrategyV1()


def _export(
    path: Path, steps: Sequence[_Step | None], run: Callable[..., Any], output_names: Any
) -> Callable[..., Any]:
    """Write the SavedModel of what the host does before, the device and the host after; the same with ``run``."""
    before, step, after = steps
    assert step is not None
    signature = (before or step).signature
    for giver, taker, name in ((before, step, "predict_step"), (step, after, "postprocessing_step")):
        if giver is not None and taker is not None:
            _check_fit(giver.results, taker.signature, name)
    names = [output_names] if isinstance(output_names, str) else output_names
    if names is not None and not isinstance(names, list):
        raise TypeError(f"output_names must be a name or a list of names, got {type(names).__name__}")
    if names and len(names) != len((after or step).results):
        raise ValueError(f"there are {len(names)} output_names for {len((after or step).results)} results")

    def around(middle: Callable[..., Any], *data: Any) -> Any:
        values = before.frozen(*data) if before else data
        values = tf.nest.flatten(middle(*values))
        values = after.frozen(*values) if after else values
        return dict(zip(names, values)) if names else values[0] if len(values) == 1 else values

    module = tf.Module()
    module.predict = tf.function(lambda *data: around(step.frozen, *data), input_signature=signature)
    tf.saved_model.save(module, str(path))

    def predict(*data: Any, **named: Any) -> Any:
        operands = [*data, *(named[spec.name] for spec in signature[len(data) :])]
        return around(
            run, *(tf.convert_to_tensor(each, spec.dtype) for each, spec in zip(operands, signature, strict=True))
        )

    return predict


def _check_fit(specs: Specs, taken: Specs, name: str) -> None:
    offered = [(each.shape, each.dtype) for each in specs]
    if len(specs) != len(taken) or not all(a.is_compatible_with(b) for a, b in zip(specs, taken)):
        expected = [(each.shape, each.dtype) for each in taken]
        raise ValueError(f"{name} takes {expected}, and what comes before it gives {offered}")
