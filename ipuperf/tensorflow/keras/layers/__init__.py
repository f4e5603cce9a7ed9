"""``tensorflow.python.ipu.keras.layers``, ``tf.keras.ipu.layers`` and ``ipu_tensorflow_addons.keras.layers``."""

from ..refused import refused
from .ctc import CTCInferenceLayer, CTCLoss, CTCPredictionsLayer
from .dense import SerialDense
from .dropout import Dropout
from .embedding import Embedding
from .marks import AssumeEqualAcrossReplicas, RecomputationCheckpoint
from .normalization import (
    GroupNorm,
    GroupNormalization,
    InstanceNorm,
    InstanceNormalization,
    LayerNorm,
    LayerNormalization,
)
from .rnn import GRU, LSTM, PopnnGRU, PopnnLSTM

EffectiveTransformer = refused("EffectiveTransformer")
CaptureUpstreamGradients = refused("CaptureUpstreamGradients")
CaptureActivationGradients = refused("CaptureActivationGradients")

__all__ = [
    "GRU",
    "LSTM",
    "AssumeEqualAcrossReplicas",
    "CTCInferenceLayer",
    "CTCLoss",
    "CTCPredictionsLayer",
    "CaptureActivationGradients",
    "CaptureUpstreamGradients",
    "Dropout",
    "EffectiveTransformer",
    "Embedding",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNorm",
    "InstanceNormalization",
    "LayerNorm",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
    "RecomputationCheckpoint",
    "SerialDense",
]
