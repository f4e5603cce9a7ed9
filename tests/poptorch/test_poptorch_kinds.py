"""Arguments of a wrong kind: optimisers, loaders and functions of PopTorch name them and say what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402

PARAMETERS = [torch.nn.Parameter(torch.ones(2))]
DATA = torch.utils.data.TensorDataset(torch.ones(8, 2))


def _loader(**options: Any) -> Any:
    return poptorch.DataLoader(poptorch.Options(), **{"dataset": DATA, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poptorch.optim.SGD(5, lr=0.1), "SGD: params is 5; a sequence is needed"),
        (lambda: poptorch.optim.SGD(PARAMETERS, lr="a"), "SGD: lr is 'a'; a number is needed"),
        (
            lambda: poptorch.optim.SGD(PARAMETERS, lr=0.1, loss_scaling="a"),
            "SGD: loss_scaling is 'a'; a number or None",
        ),
        (lambda: poptorch.optim.Adam(PARAMETERS, lr=[]), r"Adam: lr is \[\]; a number or None is needed"),
        (lambda: poptorch.optim.Adam(PARAMETERS, betas=2), "Adam: betas is 2; a sequence of numbers or None is needed"),
        (lambda: poptorch.optim.AdamW(PARAMETERS, amsgrad="a"), "AdamW: amsgrad is 'a'; True or False or None"),
        (lambda: poptorch.optim.LAMB(PARAMETERS, max_weight_norm={}), "LAMB: max_weight_norm is {}; a number or None"),
        (
            lambda: poptorch.optim.RMSprop(PARAMETERS, use_tf_variant=[]),
            r"RMSprop: use_tf_variant is \[\]; True or Fal",
        ),
        (lambda: _loader(shuffle="a"), "DataLoader: shuffle is 'a'; True or False is needed"),
        (lambda: _loader(async_options=5), "DataLoader: async_options is 5; a mapping or None is needed"),
        (lambda: poptorch.ipuHardwareIsAvailable("a"), "ipuHardwareIsAvailable: num_ipus is 'a'; a whole number"),
        (lambda: poptorch.custom_op([], [], "a", 1, []), r"custom_op: name is \[\]; a string is needed"),
        (lambda: poptorch.load(5), "load: filename is 5; a string or a path is needed"),
    ],
)
def test_arguments_of_another_kind(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_what_upstream_asserts() -> None:
    with pytest.raises(AssertionError, match="dataset 5 given, expected a torch.utils.data.Dataset"):
        _loader(dataset=5)
    with pytest.raises(AssertionError, match=r"Adam: betas is \[\], expected two numbers"):
        poptorch.optim.Adam(PARAMETERS, betas=[])
    with pytest.raises(AssertionError, match="accum_type is torch.int8"):
        poptorch.optim.Adam(PARAMETERS, accum_type=torch.int8)
    with pytest.raises(ValueError, match=r"setLogLevel: \[\] given"):
        poptorch.setLogLevel([])
