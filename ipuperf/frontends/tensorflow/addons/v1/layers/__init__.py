"""``ipu_tensorflow_addons.v1.layers``: recurrent layers."""

from .rnn_ops import PopnnAUGRU, PopnnDynamicGRU, PopnnDynamicLSTM, PopnnGRU, PopnnLSTM

__all__ = ["PopnnAUGRU", "PopnnDynamicGRU", "PopnnDynamicLSTM", "PopnnGRU", "PopnnLSTM"]
