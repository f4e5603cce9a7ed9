"""Layers of random Keras models: by which rule each is drawn, and how it is made from its description.

A description is ``[name, arguments]``; a name is one of ``keras.layers``, ``ipu.`` with one of
``tensorflow.python.ipu.keras.layers``, or ``own.`` with one of :data:`OWN`. Shapes are those of a sample.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow import keras

Shape = list[int]
Drawn = tuple[dict[str, Any], Shape]
Rule = Callable[[random.Random, Shape], Drawn | None]
"""Arguments and the shape of the result for an input's shape; None: the layer does not take it."""


@dataclass(frozen=True)
class Kind:
    """How a layer is drawn. ``rank``: of the samples that it takes (0: any); ``half``: float16 is exact enough."""

    rule: Rule
    rank: int = 0
    half: bool = True


KINDS: dict[str, Kind] = {}
ACTIVATIONS = (
    *("relu", "tanh", "sigmoid", "elu", "gelu", "selu", "softplus", "softsign", "swish", "mish", "hard_sigmoid"),
    *("exponential", "linear", "softmax"),
)
SMOOTH = ("tanh", "sigmoid", "softsign", "relu", "gelu", "linear")


def rule(names: str, rank: int = 0, half: bool = True) -> Callable[[Rule], Rule]:
    """The decorated rule draws the layers of these names (several: they differ in nothing that it draws)."""

    def register(draw: Rule) -> Rule:
        KINDS.update(dict.fromkeys(names.split(), Kind(draw, rank, half and rank < 4)))
        return draw

    return register


def _activation(r: random.Random, *shape: int) -> str:
    return r.choice(SMOOTH)


def _regular(r: random.Random, *weights: str) -> dict[str, Any]:
    """Now and then a regularizer or a constraint of a weight, which change loss and update."""
    if r.random() > 0.15:
        return {}
    weight, what = r.choice(weights), r.choice(["regularizer", "regularizer", "constraint"])
    choices = ["l1", "l2", "l1_l2"] if what == "regularizer" else ["max_norm", "non_neg", "min_max_norm"]
    return {f"{weight}_{what}": r.choice(choices)}


# -- layers for any shape ----------------------------------------------------------------------------------------------

PLAIN: dict[str, list[dict[str, Any]]] = {
    "ReLU": [{}, {"max_value": 1.5, "negative_slope": 0.2}, {"threshold": 0.3, "negative_slope": 0.1}],
    "LeakyReLU": [{}, {"alpha": 0.2}],
    "ELU": [{}, {"alpha": 0.5}],
    "PReLU": [{}],
    "ThresholdedReLU": [{"theta": 0.3}],
    "Softmax": [{}],
    "Identity": [{}],
    "Rescaling": [{"scale": 0.5, "offset": 0.25}],
    "UnitNormalization": [{}],
    "LayerNormalization": [{}, {"center": False}, {"scale": False, "epsilon": 1e-2}],
    "BatchNormalization": [{}, {"momentum": 0.8}, {"scale": False}, {"center": False, "epsilon": 1e-2}],
    "ActivityRegularization": [{"l2": 0.01}, {"l1": 0.01, "l2": 0.01}],
    "Dropout": [{"rate": 0.3}],
    "GaussianDropout": [{"rate": 0.3}],
    "GaussianNoise": [{"stddev": 0.3}],
    "AlphaDropout": [{"rate": 0.3}],
    "Activation": [{"activation": name} for name in ACTIVATIONS],
    "Lambda": [{"function": name} for name in ("root", "normal", "scaled", "clipped", "centred", "product")],
    "ipu.Dropout": [{"rate": 0.3}],
    "ipu.LayerNorm": [{}, {"center": False}],
    "ipu.LayerNormalization": [{}, {"scale": False, "epsilon": 1e-2}],
    "ipu.RecomputationCheckpoint": [{}],
    "ipu.AssumeEqualAcrossReplicas": [{}, {"inplace": True}],
    "own.Scaled": [{}],
    "own.Penalised": [{}],
}
"""Layers whose results have the shape of their inputs: the arguments that each is drawn with."""
RANDOM = ("Dropout", "GaussianDropout", "GaussianNoise", "AlphaDropout", *(f"SpatialDropout{n}D" for n in (1, 2, 3)))

"""Layers that draw numbers in training; they are kept to programs without one."""


def _plain(name: str) -> Rule:
    return lambda r, shape: (dict(r.choice(PLAIN[name])), shape)


for _name in PLAIN:
    KINDS[_name] = Kind(_plain(_name), half=_name not in ("ThresholdedReLU", "BatchNormalization", "UnitNormalization"))


@rule("Dense")
def _dense(r: random.Random, shape: Shape) -> Drawn:
    units = r.choice([3, 4, 6])
    arguments = {"units": units, "activation": _activation(r), **_regular(r, "kernel", "bias", "activity")}
    if r.random() < 0.2:
        arguments = {name: v for name, v in arguments.items() if not name.startswith("bias")} | {"use_bias": False}
    arguments.pop("activity_constraint", None)
    return arguments, [*shape[:-1], units]


@rule("ipu.SerialDense", rank=1)
def _serial_dense(r: random.Random, shape: Shape) -> Drawn | None:
    dimension = r.choice(["input_rows_kernel_columns", "kernel_rows"])
    units = r.choice([4, 6])
    if dimension == "input_rows_kernel_columns" and shape[-1] % 2:
        return None
    arguments = {"units": units, "serialization_factor": 2, "serialization_dimension": dimension}
    return {**arguments, "activation": _activation(r)}, [units]


@rule("EinsumDense")
def _einsum_dense(r: random.Random, shape: Shape) -> Drawn | None:
    if len(shape) > 2:
        return None
    equation = ["ab,bc->ac", "abc,cd->abd"][len(shape) - 1]
    result = [*shape[:-1], 5]
    return {"equation": equation, "output_shape": result, "bias_axes": equation[-1]}, result


@rule("Flatten")
def _flatten(r: random.Random, shape: Shape) -> Drawn | None:
    return ({}, [prod(shape)]) if len(shape) > 1 and prod(shape) <= 64 else None


@rule("Reshape")
def _reshape(r: random.Random, shape: Shape) -> Drawn | None:
    size = prod(shape)
    ways = [[n, size // n] for n in (2, 3, 4) if size % n == 0 and 2 <= size // n <= 16]
    target = r.choice(ways) if ways else None
    return None if target is None else ({"target_shape": target}, target)


@rule("Permute")
def _permute(r: random.Random, shape: Shape) -> Drawn | None:
    if len(shape) < 2:
        return None
    order = r.sample(range(len(shape)), len(shape))
    return {"dims": [i + 1 for i in order]}, [shape[i] for i in order]


@rule("RepeatVector", rank=1)
def _repeat(r: random.Random, shape: Shape) -> Drawn:
    return {"n": 3}, [3, *shape]


@rule("GroupNormalization ipu.GroupNorm ipu.GroupNormalization")
def _groups(r: random.Random, shape: Shape) -> Drawn | None:
    ways = [g for g in (1, 2, 3) if shape[-1] % g == 0 and prod(shape) // g >= 3]
    return ({"groups": r.choice(ways)}, shape) if ways and len(shape) > 1 else None


@rule("ipu.InstanceNorm ipu.InstanceNormalization")
def _instances(r: random.Random, shape: Shape) -> Drawn | None:
    return ({}, shape) if len(shape) > 1 and prod(shape[:-1]) >= 3 else None


# -- sequences, images, volumes ----------------------------------------------------------------------------------------


def _length(n: int, kernel: int, stride: int, padding: str) -> int:
    return -(-n // stride) if padding == "same" else (n - kernel) // stride + 1


def _window(r: random.Random, shape: Shape) -> tuple[int, int, str] | None:
    """Kernel, stride and padding for the axes of ``shape``."""
    kernel, stride, padding = r.choice([1, 2, 3]), r.choice([1, 1, 2]), r.choice(["valid", "same"])
    return None if padding == "valid" and min(shape[:-1]) < kernel else (kernel, stride, padding)


@rule("Conv1D Convolution1D", rank=2)
@rule("Conv2D Convolution2D", rank=3)
@rule("SeparableConv1D SeparableConvolution1D", rank=2)
@rule("SeparableConv2D SeparableConvolution2D", rank=3)
@rule("Conv3D Convolution3D", rank=4)
def _conv(r: random.Random, shape: Shape) -> Drawn | None:
    window = _window(r, shape)
    if window is None:
        return None
    kernel, stride, padding = window
    filters = r.choice([2, 3, 4])
    arguments = {"filters": filters, "kernel_size": kernel, "strides": stride, "padding": padding}
    arguments |= {"activation": _activation(r), "use_bias": r.random() < 0.8}
    return arguments, [*(_length(n, kernel, stride, padding) for n in shape[:-1]), filters]


@rule("LocallyConnected1D", rank=2)
@rule("LocallyConnected2D", rank=3)
def _local(r: random.Random, shape: Shape) -> Drawn | None:
    drawn = _conv(r, shape)
    return None if drawn is None or drawn[0]["padding"] == "same" else drawn


@rule("DepthwiseConv1D", rank=2)
@rule("DepthwiseConv2D", rank=3)
def _depthwise(r: random.Random, shape: Shape) -> Drawn | None:
    window = _window(r, shape)
    if window is None:
        return None
    kernel, stride, padding = window
    multiplier = r.choice([1, 2])
    arguments = {"kernel_size": kernel, "strides": stride, "padding": padding, "depth_multiplier": multiplier}
    sizes = [_length(n, kernel, stride, padding) for n in shape[:-1]]
    return {**arguments, "activation": _activation(r)}, [*sizes, multiplier * shape[-1]]


@rule("Conv1DTranspose Convolution1DTranspose", rank=2)
@rule("Conv2DTranspose Convolution2DTranspose", rank=3)
@rule("Conv3DTranspose Convolution3DTranspose", rank=4)
def _transposed(r: random.Random, shape: Shape) -> Drawn | None:
    if prod(shape) > 160:
        return None
    kernel, stride, padding = r.choice([2, 3]), r.choice([1, 2]), r.choice(["valid", "same"])
    filters = r.choice([2, 3])
    arguments = {"filters": filters, "kernel_size": kernel, "strides": stride, "padding": padding}
    grown = [n * stride + (max(kernel - stride, 0) if padding == "valid" else 0) for n in shape[:-1]]
    return {**arguments, "activation": _activation(r)}, [*grown, filters]


_POOLS = "MaxPooling{0}D MaxPool{0}D AveragePooling{0}D AvgPool{0}D"


@rule(_POOLS.format(1), rank=2)
@rule(_POOLS.format(2), rank=3)
@rule(_POOLS.format(3), rank=4)
def _pool(r: random.Random, shape: Shape) -> Drawn | None:
    window = _window(r, shape)
    if window is None:
        return None
    kernel, stride, padding = window
    arguments = {"pool_size": kernel, "strides": stride, "padding": padding}
    return arguments, [*(_length(n, kernel, stride, padding) for n in shape[:-1]), shape[-1]]


_WHOLE = "GlobalMaxPooling{0}D GlobalMaxPool{0}D GlobalAveragePooling{0}D GlobalAvgPool{0}D"


@rule(_WHOLE.format(1), rank=2)
@rule(_WHOLE.format(2), rank=3)
@rule(_WHOLE.format(3), rank=4)
def _whole(r: random.Random, shape: Shape) -> Drawn:
    if r.random() < 0.3:
        return {"keepdims": True}, [*(1 for _ in shape[:-1]), shape[-1]]
    return {}, shape[-1:]


@rule("ZeroPadding1D", rank=2)
@rule("ZeroPadding2D", rank=3)
@rule("ZeroPadding3D", rank=4)
def _padding(r: random.Random, shape: Shape) -> Drawn | None:
    return ({"padding": 1}, [*(n + 2 for n in shape[:-1]), shape[-1]]) if prod(shape) <= 96 else None


@rule("Cropping1D", rank=2)
@rule("Cropping2D", rank=3)
@rule("Cropping3D", rank=4)
def _cropping(r: random.Random, shape: Shape) -> Drawn | None:
    return ({"cropping": 1}, [*(n - 2 for n in shape[:-1]), shape[-1]]) if min(shape[:-1]) > 3 else None


@rule("UpSampling1D", rank=2)
@rule("UpSampling2D", rank=3)
@rule("UpSampling3D", rank=4)
def _upsampling(r: random.Random, shape: Shape) -> Drawn | None:
    return ({"size": 2}, [*(2 * n for n in shape[:-1]), shape[-1]]) if prod(shape) <= 48 else None


@rule("CenterCrop", rank=3)
def _centre(r: random.Random, shape: Shape) -> Drawn | None:
    return ({"height": 3, "width": 3}, [3, 3, shape[-1]]) if min(shape[:2]) >= 3 else None


@rule("SpatialDropout1D", rank=2)
@rule("SpatialDropout2D", rank=3)
@rule("SpatialDropout3D", rank=4)
def _spatial(r: random.Random, shape: Shape) -> Drawn:
    return {"rate": 0.3}, shape


# -- recurrent layers and attention ------------------------------------------------------------------------------------


def _short(shape: Shape) -> bool:
    return shape[0] <= 5


@rule("LSTM GRU SimpleRNN", rank=2)
def _recurrent(r: random.Random, shape: Shape) -> Drawn | None:
    if not _short(shape):
        return None
    sequences = r.random() < 0.5
    arguments = {"units": 3, "return_sequences": sequences, "unroll": r.random() < 0.5}
    arguments |= {"activation": r.choice(["tanh", "tanh", "relu"]), "go_backwards": r.random() < 0.2}
    return arguments, [*(shape[:1] if sequences else []), 3]


@rule("ipu.LSTM ipu.PopnnLSTM ipu.GRU ipu.PopnnGRU", rank=2)
def _recurrent_op(r: random.Random, shape: Shape) -> Drawn:
    sequences = r.random() < 0.5
    arguments = {"units": 3, "return_sequences": sequences, "activation": r.choice(["tanh", "tanh", "relu"])}
    return arguments, [*(shape[:1] if sequences else []), 3]


@rule("ConvLSTM1D", rank=3)
@rule("ConvLSTM2D", rank=4)
def _convolved(r: random.Random, shape: Shape) -> Drawn | None:
    if prod(shape) > 100 or not _short(shape):
        return None
    sequences = r.random() < 0.5
    arguments = {"filters": 2, "kernel_size": r.choice([1, 2]), "padding": "same", "return_sequences": sequences}
    return arguments, [*shape[0 if sequences else 1 : -1], 2]


@rule("RNN", rank=2)
def _cells(r: random.Random, shape: Shape) -> Drawn | None:
    cells = [[r.choice(["LSTMCell", "GRUCell", "SimpleRNNCell"]), {"units": 3}] for _ in range(r.choice([1, 2]))]
    cell = cells[0] if len(cells) == 1 else ["StackedRNNCells", {"cells": cells}]
    return ({"cell": cell, "unroll": r.random() < 0.5}, [3]) if _short(shape) else None


@rule("Bidirectional", rank=2)
def _bidirectional(r: random.Random, shape: Shape) -> Drawn | None:
    inner = [r.choice(["LSTM", "GRU", "SimpleRNN"]), {"units": 2, "unroll": True}]
    merge = r.choice(["concat", "sum", "ave", "mul"])
    return ({"layer": inner, "merge_mode": merge}, [4 if merge == "concat" else 2]) if _short(shape) else None


@rule("Masking", rank=2)
def _masked(r: random.Random, shape: Shape) -> Drawn:
    return {"mask_value": 0.0}, shape


@rule("TimeDistributed", rank=2)
def _distributed(r: random.Random, shape: Shape) -> Drawn:
    return {"layer": ["Dense", {"units": 4, "activation": _activation(r)}]}, [shape[0], 4]


@rule("SpectralNormalization", rank=1, half=False)
def _spectral(r: random.Random, shape: Shape) -> Drawn:
    return {"layer": ["Dense", {"units": 4}]}, [4]


@rule("MultiHeadAttention Attention AdditiveAttention", rank=2)
def _attention(r: random.Random, shape: Shape) -> Drawn:
    return {}, shape


ATTENTIONS: dict[str, list[dict[str, Any]]] = {
    "MultiHeadAttention": [{"num_heads": 2, "key_dim": 2}, {"num_heads": 1, "key_dim": 3, "value_dim": 2}],
    "Attention": [{}, {"use_scale": True}],
    "AdditiveAttention": [{}, {"use_scale": False}],
}

MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot")
FUNCTIONAL_MERGES = ("add", "subtract", "multiply", "average", "maximum", "minimum", "concatenate")
"""Functions of ``keras.layers`` that stand for a merge, in functional models."""

# -- layers and functions of one's own ---------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "root": lambda x: tf.sqrt(tf.abs(x) + 0.5),
    "normal": lambda x: tf.math.l2_normalize(x + 0.1, axis=-1),
    "scaled": lambda x: x * 0.5 + tf.reduce_mean(x, axis=-1, keepdims=True),
    "clipped": lambda x: tf.clip_by_value(x, -0.8, 0.9),
    "centred": lambda x: x - tf.reduce_max(x, axis=-1, keepdims=True),
    "product": lambda x: x * tf.reverse(x, axis=[-1]),
}
"""What a ``Lambda`` computes."""


class Scaled(keras.layers.Layer):
    """Scale by a weight without axes, shift by one of rank 1."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight("scale", shape=(), initializer="ones")
        self.shift = self.add_weight("shift", shape=(shape[-1],), initializer="zeros")

    def call(self, inputs: Any) -> Any:
        return inputs * tf.cast(self.scale, inputs.dtype) + tf.cast(self.shift, inputs.dtype)


class Penalised(keras.layers.Layer):
    """A loss of the activations."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.01 * tf.reduce_mean(tf.square(tf.cast(inputs, tf.float32))))
        return inputs


OWN = {"Scaled": Scaled, "Penalised": Penalised}


class GroupsByHand(keras.layers.Layer):
    """``ipu.GroupNorm`` in TensorFlow: channel ``c`` belongs to group ``c % groups``; 0 groups: one for each."""

    def __init__(self, groups: int = 2, epsilon: float = 1e-3, **options: Any) -> None:
        super().__init__(**options)
        self.groups, self.epsilon = groups, epsilon

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight("gamma", shape=shape[-1:], initializer="ones")
        self.beta = self.add_weight("beta", shape=shape[-1:], initializer="zeros")

    def call(self, inputs: Any) -> Any:
        groups = self.groups or inputs.shape[-1]
        x = tf.cast(inputs, self.gamma.dtype)
        x = tf.reshape(x, [x.shape[0], -1, x.shape[-1] // groups, groups])
        mean, variance = tf.nn.moments(x, [1, 2], keepdims=True)
        x = tf.reshape((x - mean) / tf.sqrt(variance + self.epsilon), inputs.shape)
        return tf.cast(x * self.gamma + self.beta, inputs.dtype)


def _nothing(rate: Any = None, inplace: bool = False, **options: Any) -> Any:
    return keras.layers.Identity(**options)


def _dense_by_keras(serialization_factor: int, serialization_dimension: str, **options: Any) -> Any:
    return keras.layers.Dense(**options)


BY_KERAS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Dropout", "RecomputationCheckpoint", "AssumeEqualAcrossReplicas"), _nothing),
    **dict.fromkeys(("LayerNorm", "LayerNormalization"), keras.layers.LayerNormalization),
    **dict.fromkeys(("GroupNorm", "GroupNormalization"), GroupsByHand),
    **dict.fromkeys(("InstanceNorm", "InstanceNormalization"), lambda **options: GroupsByHand(0, **options)),
    **dict.fromkeys(("LSTM", "PopnnLSTM"), keras.layers.LSTM),
    **dict.fromkeys(("GRU", "PopnnGRU"), keras.layers.GRU),
    "SerialDense": _dense_by_keras,
    "Embedding": lambda serialization_factor=1, **options: keras.layers.Embedding(**options),
}
"""What stands for layers of ``ipu.keras.layers`` on the CPU."""


def made(description: Sequence[Any], on_ipu: bool, **options: Any) -> Any:
    """The layer of a description."""
    name, given = description
    arguments = {n: _argument(value, on_ipu) for n, value in given.items()} | options
    library, _, name = name.rpartition(".")
    if library == "ipu":
        from tensorflow import keras as attached

        return (getattr(attached.ipu.layers, name) if on_ipu else BY_KERAS[name])(**arguments)
    if library == "own":
        return OWN[name](**arguments)
    if name == "Lambda":
        return keras.layers.Lambda(FUNCTIONS[arguments.pop("function")], **arguments)
    layer = getattr(keras.layers, name)(**arguments)
    if not on_ipu and hasattr(layer, "_could_use_gpu_kernel"):
        layer._could_use_gpu_kernel = False  # else TensorFlow makes a graph of it, which takes longer than to run it
    return layer


def _argument(value: Any, on_ipu: bool) -> Any:
    """A layer or cells for descriptions among the arguments of a wrapper."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict):
        return made(value, on_ipu)
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [made(one, on_ipu) for one in value]
    return value
