"""IPU options in saved models: written into the configuration of ``Functional`` and ``Sequential`` models, and read.

Saving and loading happen inside the ``IPUStrategy``, as upstream; other programs read the models without the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import tensorflow as tf
from tf_keras.src.saving.legacy.saved_model import json_utils

from .extension import extension, on_ipu
from .options import Options
from .staging import flat, unassigned

_KEY = "ipu"


def config_with_options(get_config: Any) -> Any:
    """``get_config`` that also writes the options."""

    @wraps(get_config)
    def get(self: Any) -> dict[str, Any]:
        config: dict[str, Any] = get_config(self)
        if on_ipu(self) and _KEY not in config:
            side = extension(self)
            _tell_unsaved(side)
            stages = [assignment.pipeline_stage for assignment in flat(side.assignments)] if side.valid else []
            config[_KEY] = {"options": side.options.saved(), "stages": stages}
        return config

    return get


def model_with_options(from_config: Any) -> Any:
    """``from_config`` that also reads the options."""

    @wraps(from_config.__func__)
    def make(cls: Any, config: dict[str, Any], *args: Any, **options: Any) -> Any:
        model = from_config.__func__(cls, {k: v for k, v in config.items() if k != _KEY}, *args, **options)
        _restore(model, config)
        return model

    return classmethod(make)


def reconstructed_with_options(reconstruct: Any) -> Any:
    """The reconstruction of a SavedModel's model that also reads the options."""

    @wraps(reconstruct)
    def make(self: Any, model_id: Any, model: Any, layers: Any) -> None:
        reconstruct(self, model_id, model, layers)
        _restore(model, json_utils.decode(self._metadata[model_id].metadata)["config"])

    return make


def _restore(model: Any, config: dict[str, Any]) -> None:
    saved = config.get(_KEY)
    if saved is not None and on_ipu(model):
        side = extension(model)
        side.options = Options.restored(saved["options"])
        if saved["stages"]:
            side.assign(_with_stages(unassigned(model), saved["stages"]))


def _with_stages(assignments: list[Any], stages: Sequence[int]) -> list[Any]:
    for assignment, stage in zip(flat(assignments), stages):
        assignment.pipeline_stage = stage
    return assignments


def _tell_unsaved(side: Any) -> None:
    for options, name, setter in (
        (
            side.options.accumulation_options,
            "gradient_accumulation_optimizer_kwargs",
            "set_gradient_accumulation_options",
        ),
        (side.options.pipeline_options, "pipelining_kwargs", "set_pipelining_options"),
    ):
        if options:
            tf.get_logger().info(
                f"Calling get_config() on {side.model.name} - `{name}` cannot be serialized and you will need to call "
                f"`{setter}` again if the model is restored."
            )
