"""Modules that TensorFlow's port for the IPU adds to TensorFlow and Keras: upstream's name and the module here.

Each entry also stands for the modules below it. A class that upstream keeps in a file of its own is found under that
file's name.
"""

from __future__ import annotations

_IPU = "ipuperf.frontends.tensorflow.python.ipu"
_KERAS = "ipuperf.frontends.tensorflow.keras"
_ADDONS = "ipuperf.frontends.tensorflow.addons"
_LAYERS = (
    *("assume_equal_across_replicas", "ctc", "dense", "dropout", "effective_transformer", "embedding_lookup"),
    "recomputation",
)


def _files(package: str, files: tuple[str, ...], module: str) -> dict[str, str]:
    return {f"{package}.{file}": module for file in files}


MODULES = {
    "tensorflow.python.ipu": _IPU,
    "tensorflow.python.ipu.keras": _KERAS,
    "tensorflow.keras.ipu": _KERAS,
    **_files(
        "tensorflow.python.ipu.keras.optimizers",
        ("cross_replica_optimizer", "gradient_accumulation_optimizer", "map_gradient_optimizer", "als_optimizer"),
        f"{_KERAS}.optimizers",
    ),
    "ipu_tensorflow_addons": _ADDONS,
    "ipu_tensorflow_addons.keras.layers": f"{_KERAS}.layers",
    **_files("ipu_tensorflow_addons.keras.layers", _LAYERS, f"{_KERAS}.layers"),
    **_files("tensorflow.python.ipu.keras.layers", _LAYERS, f"{_KERAS}.layers"),
    "ipu_tensorflow_addons.layers": f"{_ADDONS}.v1.layers",
    "keras": "tf_keras",
    "keras.ipu": _KERAS,
}
