"""Recurrent layers of the package ``ipu_tensorflow_addons``: one has its biases from ``bias_initializer``."""

from __future__ import annotations

from typing import Any

from ..facade.popnn_layers import PopnnGRU, time_first


class PopnnDynamicGRU(PopnnGRU):
    """:class:`PopnnGRU` over sequences of several lengths, with its biases (``bias_initializer``)."""

    def call(  # type: ignore[override]  # upstream's arguments
        self, inputs: Any, seq_len: Any, initial_state: Any = None, training: bool = True, time_major: bool = True
    ) -> Any:
        """As there; ``seq_len [batch]``: outputs behind the end of a sequence are 0. Without ``time_major`` inputs are
        ``[batch, time, inputs]``."""
        return self._over(time_first(inputs, time_major), self.biases, initial_state, training, seq_len)
