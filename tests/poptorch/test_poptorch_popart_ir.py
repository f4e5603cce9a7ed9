"""``_debugGetPopartIR``: the program's ops in PopART's JSON layout."""

import json
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return poptorch.identity_loss(self.linear(x).square(), "mean")


OPTIMISERS: dict[str, tuple[Any, dict[str, Any], int, str]] = {
    "SGD0": (poptorch.optim.SGD, {}, 1, "SGD0VarUpdate"),
    "SGD1": (poptorch.optim.SGD, {"momentum": 0.5, "use_combined_accum": True}, 2, "SGD1VarUpdate"),
    "SGD2": (poptorch.optim.SGD, {"momentum": 0.5}, 2, "SGD2VarUpdate"),
    "AdamW": (poptorch.optim.AdamW, {}, 2, "AdamVarUpdate"),
    "LAMB": (poptorch.optim.LAMB, {}, 1, "AdamVarUpdate"),
    "RMSprop": (poptorch.optim.RMSprop, {}, 1, "ScaledVarUpdate"),
}


@pytest.mark.parametrize(("kind", "more", "accumulation", "word"), OPTIMISERS.values(), ids=list(OPTIMISERS))
def test_updates_of_weights(kind: Any, more: dict[str, Any], accumulation: int, word: str) -> None:
    module = Model()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    model = poptorch.trainingModel(module, options, kind(module.parameters(), lr=0.1, **more))
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        model._debugGetPopartIR()
    model.compile(torch.zeros(4, 4))
    found = json.loads(model._debugGetPopartIR())
    assert list(found) == ["maingraph"]
    types = Counter(op["type"] for op in found["maingraph"])
    assert types[word] == 2, "a weight and a bias"
    assert not {"Call", "Loop"} & types.keys()
    names = [op["name"] for op in found["maingraph"]]
    assert len(set(names)) == len(names), "each op once"


def test_layout() -> None:
    model = poptorch.inferenceModel(torch.nn.Linear(4, 3).half(), poptorch.Options().showCompilationProgressBar(False))
    model.compile(torch.zeros(2, 4).half())
    (product,) = [op for op in json.loads(model._debugGetPopartIR())["maingraph"] if op["type"] == "MatMul"]
    assert (product["domain"], product["version"]) == ("ipuperf", "1")
    assert [(t["shape"], t["type"], t["index"]) for t in product["inputs"]] == [
        ("[2 4]", "FLOAT16", "0"),
        ("[4 3]", "FLOAT16", "1"),
    ]
    assert [t["index"] for t in product["outputs"]] == ["0"]
    assert all(isinstance(value, str) for value in product["attributes"].values())


def test_convolutions_of_a_scope_are_one() -> None:
    class Convolutions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(2, 2, 3) for _ in range(3))

        def forward(self, x: Any) -> Any:
            with poptorch.MultiConv():
                found = self.layers[0](x) + self.layers[1](x)
            return self.layers[2](found)

    model = poptorch.inferenceModel(Convolutions(), poptorch.Options().showCompilationProgressBar(False))
    model.compile(torch.zeros(1, 2, 8, 8))
    ops = json.loads(model._debugGetPopartIR())["maingraph"]
    types = Counter(op["type"] for op in ops)
    assert (types["MultiConv"], types["Conv"]) == (1, 1)
    (scope,) = [op for op in ops if op["type"] == "MultiConv"]
    assert (len(scope["inputs"]), len(scope["outputs"])) == (4, 2)
    assert scope["attributes"]["groups[1]"] == "1"
