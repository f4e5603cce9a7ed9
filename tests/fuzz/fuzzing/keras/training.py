"""Optimizers, learning rates, losses and metrics of random Keras models: what each is drawn with, how it is made."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

Options = list[dict[str, Any]]
LARGE: dict[str, Any] = {"epsilon": 0.05}
"""An epsilon with which a gradient that is nothing but rounding does not become a whole step."""

_MOMENTUM: Options = [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}]
_ADAM: Options = [LARGE, LARGE | {"amsgrad": True}, {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 0.01}, {}]
_RMS: Options = [LARGE, LARGE | {"momentum": 0.5}, LARGE | {"centered": True}, {"rho": 0.8, "epsilon": 0.01}]
_FTRL: Options = [{}, {"learning_rate_power": -0.4, "l1_regularization_strength": 0.001}]
_FTRL += [{"l2_regularization_strength": 0.01}, {"l2_shrinkage_regularization_strength": 0.01, "beta": 0.5}]
_ADAGRAD: Options = [{"initial_accumulator_value": 0.1}, {"initial_accumulator_value": 0.5, "epsilon": 0.01}]
_COMMON: Options = [{"weight_decay": 0.02}, {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2}]
_COMMON += [{"use_ema": True, "ema_momentum": 0.9}]


def _with_common(options: Options, of_all: Options = _COMMON) -> Options:
    return [*options, *options, *(options[0] | more for more in of_all)]


OPTIMIZERS: dict[str, Options] = {
    "SGD": _with_common(_MOMENTUM),
    "Adam": _with_common(_ADAM),
    "AdamW": _with_common([option | {"weight_decay": 0.02} for option in _ADAM], _COMMON[1:]),
    "RMSprop": _with_common(_RMS),
    "Adagrad": _with_common(_ADAGRAD),
    "Adadelta": _with_common([LARGE, {"rho": 0.8, "epsilon": 0.01}]),
    "Adamax": _with_common([LARGE, {"beta_1": 0.8, "epsilon": 0.01}]),
    "Ftrl": _with_common(_FTRL),
    "Adafactor": _with_common([{}, {"relative_step": False}, {"beta_2_decay": -0.6, "clip_threshold": 0.5}]),
    "Lion": _with_common([{}, {"beta_1": 0.8, "beta_2": 0.9}]),
    "legacy.SGD": _with_common(_MOMENTUM, [{"decay": 0.1}]),
    "legacy.Adam": _with_common(_ADAM, [{"decay": 0.1}]),
    "legacy.RMSprop": _with_common(_RMS, [{"decay": 0.1}]),
    "legacy.Adagrad": _ADAGRAD,
    "legacy.Adadelta": [LARGE],
    "legacy.Adamax": [LARGE],
    "legacy.Nadam": [LARGE],
    "legacy.Ftrl": _FTRL,
    "addons.SGDIpuOptimizer": _with_common(_MOMENTUM, [{"outline_apply_gradients": True}]),
    "addons.AdamIpuOptimizer": _with_common(_ADAM, [{"debiasing": False}, {"outline_apply_gradients": True}]),
    "addons.LAMBIpuOptimizer": [
        {"epsilon": 0.01} | more
        for more in ({}, {"weight_decay_rate": 0.02}, {"weight_norm_clip": 0.5}, {"debiasing": False})
    ],
    "v1.GradientDescentOptimizer": [{}],
    "v1.MomentumOptimizer": [{"momentum": 0.9}, {"momentum": 0.9, "use_nesterov": True}],
    "v1.AdamOptimizer": [LARGE, {}],
    "v1.RMSPropOptimizer": [LARGE, LARGE | {"momentum": 0.5}, LARGE | {"centered": True}],
    "v1.AdagradOptimizer": [{}],
    "v1.AdadeltaOptimizer": [LARGE],
    "v1.FtrlOptimizer": [{}, {"l1_regularization_strength": 0.001}],
    "v1.ProximalGradientDescentOptimizer": [{}, {"l2_regularization_strength": 0.01}],
}
"""Those of ``keras.optimizers``, its ``legacy``, ``tf.compat.v1.train`` and ``ipu_tensorflow_addons.keras``.

The later ``Nadam`` counts its updates in Python: what it computes in a graph depends on how often that is traced."""
CLIPS: Options = [{"clipnorm": 0.3}, {"clipvalue": 0.05}, {"global_clipnorm": 0.3}]
SCHEDULES: dict[str, Options] = {
    "ExponentialDecay": [
        {"decay_steps": 2, "decay_rate": 0.5},
        {"decay_steps": 2, "decay_rate": 0.5, "staircase": True},
    ],
    "InverseTimeDecay": [{"decay_steps": 2, "decay_rate": 0.5}],
    "PolynomialDecay": [
        {"decay_steps": 3, "end_learning_rate": 0.001},
        {"decay_steps": 2, "power": 2.0, "cycle": True},
    ],
    "CosineDecay": [{"decay_steps": 5, "alpha": 0.1}, {"decay_steps": 6, "warmup_target": 0.02, "warmup_steps": 2}],
    "CosineDecayRestarts": [{"first_decay_steps": 3, "alpha": 0.1}],
    "PiecewiseConstantDecay": [{}],
}
WRAPPERS = ("CrossReplicaOptimizer", "MapGradientOptimizerInvertedChaining", "IpuOptimizer", "LossScaleOptimizer")


def rate(drawn: Any) -> Any:
    """A learning rate: a number, or ``[schedule, options, first rate]``."""
    if not isinstance(drawn, list):
        return drawn
    name, options, first = drawn
    if name == "PiecewiseConstantDecay":
        return keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [first, first / 2, first / 4])
    return getattr(keras.optimizers.schedules, name)(first, **options)


def optimizer(name: str, options: dict[str, Any], drawn_rate: Any, on_ipu: bool) -> Any:
    """The optimizer of this name, or what stands for it on the CPU."""
    library, _, own_name = name.rpartition(".")
    if library == "addons" and not on_ipu:
        return BY_HAND[own_name](rate(drawn_rate), **options)
    if library == "addons":
        from ipuperf.tensorflow.addons.keras import optimizers as made
    else:
        places = {"": keras.optimizers, "legacy": keras.optimizers.legacy, "v1": tf.compat.v1.train}
        made = places[library]
    return getattr(made, own_name)(rate(drawn_rate), **options)


def mapped(gradient: Any, variable: Any) -> Any:
    """What a ``MapGradientOptimizerInvertedChaining`` does to gradients."""
    return tf.convert_to_tensor(gradient) * 0.5 + variable * 0.01  # of an embedding, rows and their numbers come


class ByHand:
    """An optimizer of the addons, written out: ``step(number, gradient, value, state)`` is the new value."""

    def __init__(self, learning_rate: Any, outline_apply_gradients: bool = False, **options: Any) -> None:
        self.learning_rate, self.options = learning_rate, options
        self.iterations = tf.Variable(0, dtype=tf.int64)
        self._state: dict[int, dict[str, np.ndarray]] = {}

    def apply_gradients(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """One update, in float64."""
        number = int(self.iterations) + 1
        current = self.learning_rate(self.iterations) if callable(self.learning_rate) else self.learning_rate
        for gradient, variable in pairs:
            state = self._state.setdefault(id(variable), {})
            g, value = (np.asarray(x, np.float64) for x in (gradient, variable))
            change = self.step(number, g, value, state, self.options)
            variable.assign(tf.cast(value - float(current) * change, variable.dtype))
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    @staticmethod
    def step(number: int, g: np.ndarray, value: np.ndarray, state: dict[str, Any], o: dict[str, Any]) -> np.ndarray:
        """The change of a variable before its product with the learning rate."""
        raise NotImplementedError


def _moments(number: int, g: np.ndarray, state: dict[str, Any], o: dict[str, Any]) -> tuple[Any, Any]:
    b1, b2 = o.get("beta_1", 0.9), o.get("beta_2", 0.999)
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    if not o.get("debiasing", True):
        return state["m"], state["v"]
    return state["m"] / (1 - b1**number), state["v"] / (1 - b2**number)


class AdamByHand(ByHand):
    """Epsilon joins the root of the unbiased second moment, where Keras' Adam adds it to the biased one."""

    @staticmethod
    def step(number: int, g: np.ndarray, value: np.ndarray, state: dict[str, Any], o: dict[str, Any]) -> np.ndarray:
        m, v = _moments(number, g, state, o)
        if o.get("amsgrad"):
            v = state["largest"] = np.maximum(v, state.get("largest", 0))
        return m / (np.sqrt(v) + o.get("epsilon", 1e-7))


class LambByHand(ByHand):
    """The norm of a step is that of its variable."""

    @staticmethod
    def step(number: int, g: np.ndarray, value: np.ndarray, state: dict[str, Any], o: dict[str, Any]) -> np.ndarray:
        m, v = _moments(number, g, state, o)
        change = m / (np.sqrt(v) + o["epsilon"]) + o.get("weight_decay_rate", 0) * value
        weight, length = min(np.linalg.norm(value), o.get("weight_norm_clip", np.inf)), np.linalg.norm(change)
        return change * (weight / length if weight > 0 and length > 0 else 1)


def _sgd(learning_rate: Any, outline_apply_gradients: bool = False, **options: Any) -> Any:
    return keras.optimizers.legacy.SGD(learning_rate, **options)


BY_HAND: dict[str, Callable[..., Any]] = {
    "AdamIpuOptimizer": AdamByHand,
    "LAMBIpuOptimizer": LambByHand,
    "SGDIpuOptimizer": _sgd,
}

# -- losses and metrics ------------------------------------------------------------------------------------------------

_LOGITS: Options = [{}, {"from_logits": True}]
LOSSES: dict[str, tuple[str, Options, str]] = {
    "MeanSquaredError": ("real", [{}], "mean_squared_error mse MSE"),
    "MeanAbsoluteError": ("real", [{}], "mean_absolute_error mae MAE"),
    "MeanAbsolutePercentageError": ("positive", [{}], "mean_absolute_percentage_error mape MAPE"),
    "MeanSquaredLogarithmicError": ("positive", [{}], "mean_squared_logarithmic_error msle MSLE"),
    "Huber": ("real", [{}, {"delta": 0.5}], "huber"),
    "LogCosh": ("real", [{}], "log_cosh logcosh"),
    "CosineSimilarity": ("real", [{}], "cosine_similarity"),
    "Poisson": ("positive", [{}], "poisson"),
    "KLDivergence": ("probability", [{}], "kl_divergence kullback_leibler_divergence kld KLD"),
    "Hinge": ("sign", [{}], "hinge"),
    "SquaredHinge": ("sign", [{}], "squared_hinge"),
    "CategoricalHinge": ("one hot", [{}], "categorical_hinge"),
    "BinaryCrossentropy": ("binary", [*_LOGITS, {"label_smoothing": 0.1}], "binary_crossentropy"),
    "BinaryFocalCrossentropy": ("binary", [*_LOGITS, {"gamma": 1.5}], "binary_focal_crossentropy"),
    "CategoricalCrossentropy": ("one hot", [*_LOGITS, {"label_smoothing": 0.1}], "categorical_crossentropy"),
    "CategoricalFocalCrossentropy": ("one hot", [*_LOGITS, {"alpha": 0.5}], "categorical_focal_crossentropy"),
    "SparseCategoricalCrossentropy": ("class", _LOGITS, "sparse_categorical_crossentropy"),
}
"""What the targets of a loss are, its options, the names by which Keras also knows it."""
HEADS = {"real": "linear", "positive": "softplus", "probability": "softmax", "sign": "tanh"}
HEADS |= {"one hot": "softmax", "binary": "sigmoid", "class": "softmax"}
"""The activation of the last layer by the kind of the targets."""

_ANY = "MeanSquaredError MeanAbsoluteError RootMeanSquaredError CosineSimilarity LogCoshError"
_ANY += " mean_squared_error mean_absolute_error mse mae MSE MAE log_cosh logcosh cosine_similarity"
_POSITIVE = "MeanAbsolutePercentageError MeanSquaredLogarithmicError Poisson mean_absolute_percentage_error mape MAPE"
_POSITIVE += " mean_squared_logarithmic_error msle MSLE poisson"
_BINARY = "BinaryAccuracy BinaryCrossentropy Precision Recall AUC TruePositives TrueNegatives FalsePositives"
_BINARY += " FalseNegatives BinaryIoU binary_accuracy binary_crossentropy binary_focal_crossentropy accuracy"
_ONE_HOT = (
    "CategoricalAccuracy TopKCategoricalAccuracy CategoricalCrossentropy CategoricalHinge OneHotIoU OneHotMeanIoU"
)
_ONE_HOT += " categorical_accuracy categorical_crossentropy categorical_hinge categorical_focal_crossentropy accuracy"
_CLASS = "SparseCategoricalAccuracy SparseTopKCategoricalAccuracy SparseCategoricalCrossentropy"
_CLASS += " sparse_categorical_accuracy sparse_categorical_crossentropy accuracy"
METRICS: dict[str, list[str]] = {
    "real": f"{_ANY} R2Score MeanRelativeError".split(),
    "positive": f"{_ANY} {_POSITIVE}".split(),
    "probability": f"{_ANY} KLDivergence KLD kl_divergence kld kullback_leibler_divergence".split(),
    "sign": f"{_ANY} Hinge SquaredHinge hinge squared_hinge".split(),
    "binary": f"{_ANY} {_BINARY}".split(),
    "one hot": f"{_ANY} {_ONE_HOT} F1Score FBetaScore Accuracy".split(),
    "class": f"{_CLASS} IoU MeanIoU".split(),
}
"""Metrics by the kind of the targets."""
METRIC_OPTIONS: dict[str, dict[str, Any]] = {
    "AUC": {"num_thresholds": 20},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "OneHotIoU": {"num_classes": 4, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 4},
    "IoU": {"num_classes": 4, "target_class_ids": [0, 2], "sparse_y_pred": False},
    "MeanIoU": {"num_classes": 4, "sparse_y_pred": False},
    "MeanRelativeError": {"normalizer": [1.0, 2.0, 0.5, 4.0]},
    "FBetaScore": {"beta": 2.0, "average": "micro"},
    "F1Score": {"average": "macro"},
    "BinaryIoU": {"target_class_ids": [0, 1]},
}


def loss(name: str, options: dict[str, Any]) -> Any:
    """A loss: an object of a class, or a name that Keras knows."""
    return getattr(keras.losses, name)(**options) if name in LOSSES else name


def metric(name: str) -> Any:
    """A metric: an object of a class, or a name that Keras knows."""
    made = getattr(keras.metrics, name, None)
    if isinstance(made, type):
        return made(**METRIC_OPTIONS.get(name, {}))
    return made if isinstance(keras.metrics.get(name), str) else name  # some names stand for functions only


def targets(kind: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    """Random targets of a kind."""
    *rest, size = shape
    labels = rng.integers(0, size, rest)
    makers: dict[str, Callable[[], np.ndarray]] = {
        "real": lambda: rng.normal(size=shape),
        "positive": lambda: rng.random(shape) + 0.2,
        "probability": lambda: rng.dirichlet(np.ones(size), rest),
        "sign": lambda: 2.0 * rng.integers(0, 2, shape) - 1,
        "binary": lambda: rng.integers(0, 2, shape),
        "one hot": lambda: np.eye(size)[labels],
    }
    return labels.astype(np.int32) if kind == "class" else makers[kind]().astype(np.float32)
