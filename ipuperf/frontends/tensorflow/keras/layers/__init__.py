"""``tensorflow.python.ipu.keras.layers``, ``tf.keras.ipu.layers`` and ``ipu_tensorflow_addons.keras.layers``."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popart.offering import offered as _offered

from ..arguments import refused as _refused
from .networks import (
    AssumeEqualAcrossReplicas,
    CTCInferenceLayer,
    CTCLoss,
    CTCPredictionsLayer,
    Dropout,
    Embedding,
    RecomputationCheckpoint,
    SerialDense,
)
from .normalization import (
    GroupNorm,
    GroupNormalization,
    InstanceNorm,
    InstanceNormalization,
    LayerNorm,
    LayerNormalization,
)
from .rnn import GRU, LSTM, PopnnGRU, PopnnLSTM

EffectiveTransformer = _refused("EffectiveTransformer")
CaptureUpstreamGradients = _refused("CaptureUpstreamGradients")
CaptureActivationGradients = _refused("CaptureActivationGradients")

__all__ = _offered(__name__)
