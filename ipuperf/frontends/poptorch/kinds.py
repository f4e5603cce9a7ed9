"""Kinds of arguments of PopTorch's classes, by their annotations (:mod:`ipuperf.kinds`)."""

import torch

from ipuperf.kinds import WHOLE, ArgumentKind, Kinds, is_number


def _is_number(value: object) -> bool:
    """Whether ``value`` is a number, also one in a tensor."""
    return is_number(value) or (isinstance(value, torch.Tensor) and value.numel() == 1)


checked_kinds = Kinds({"int": WHOLE, "float": ArgumentKind(_is_number, "a number", frozenset([int, float]))}).checked
