"""``rotary_pos_embed_binding`` of LLaMA's and Dolly's ports to PopXL: rotary embedding by halves."""

from ipuperf.frontends.popxl.custom_ops import Binding
from ipuperf.ops import RotaryPosEmbedHalves

RotaryPosEmbedOp = Binding(RotaryPosEmbedHalves)

__all__ = ["RotaryPosEmbedOp"]
