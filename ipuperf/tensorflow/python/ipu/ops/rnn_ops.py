"""Recurrent layers of PopNN."""

from ....refusals import refused

_INSTEAD = "use tf.keras.layers, whose recurrent layers run on the IPU"
PopnnLSTM = refused("rnn_ops.PopnnLSTM", _INSTEAD)
PopnnDynamicLSTM = refused("rnn_ops.PopnnDynamicLSTM", _INSTEAD)
PopnnGRU = refused("rnn_ops.PopnnGRU", _INSTEAD)
PopnnDynamicGRU = refused("rnn_ops.PopnnDynamicGRU", _INSTEAD)
PopnnAUGRU = refused("rnn_ops.PopnnAUGRU", _INSTEAD)

__all__ = ["PopnnAUGRU", "PopnnDynamicGRU", "PopnnDynamicLSTM", "PopnnGRU", "PopnnLSTM"]
