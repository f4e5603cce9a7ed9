"""``nms_custom_op`` of ``vision/efficientdet/tensorflow2``: non-maximum suppression (:class:`ipuperf.ops.Nms`).

The attributes are an object in JSON: ``threshold``, ``scoreThreshold``, ``numDetections``, ``sigma``, ``useGather``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import tensorflow as tf

from ipuperf.frontends.tensorflow.importer import Importer, MadeBy, Value, marker, tensor_of
from ipuperf.functions import make_all
from ipuperf.ops.selection.suppression import Nms

NAMES = ("positions", "scores", "boxes", "classes", "lengths")


def Build(inputs: Sequence[tf.Tensor], attributes: str) -> list[tf.Tensor]:
    """Positions, scores, boxes and classes of the best boxes, and their number."""
    given = {name: value for name, value in json.loads(attributes).items() if value is not None}  # null: the default
    settings = {"threshold": 0.5, "scoreThreshold": 0.0, **given}
    settings.pop("inPlace", None)  # whether the codelets lower the scores themselves or a copy of them

    def build(importer: Importer, values: Sequence[Value]) -> Sequence[Value]:
        operands = [tensor_of(value, importer.place) for value in values]
        return make_all(Nms, operands, NAMES, **settings)

    places = (inputs[0].shape[0], settings.get("numDetections", 100))
    outputs = [
        tf.TensorSpec(places, tf.int32),
        tf.TensorSpec(places, inputs[0].dtype),
        tf.TensorSpec((*places, 4), inputs[1].dtype),
        tf.TensorSpec(places, tf.int32),
        tf.TensorSpec(places[:1], tf.int32),
    ]
    return marker("nms", MadeBy(build), inputs, outputs, effect=False)
