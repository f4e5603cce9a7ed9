"""``ipu_tensorflow_addons.v1.layers.rnn_ops``: the layers of :mod:`ipuperf.tensorflow.popnn_layers`."""

from ....popnn_layers import PopnnAUGRU, PopnnDynamicGRU, PopnnDynamicLSTM, PopnnGRU, PopnnLSTM

__all__ = ["PopnnAUGRU", "PopnnDynamicGRU", "PopnnDynamicLSTM", "PopnnGRU", "PopnnLSTM"]
