"""Objects of classes with a parser, and dictionaries in any order, as arguments, results and batches."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.data import rebatch  # noqa: E402
from ipuperf.poptorch.export.structure import CustomArgParsers  # noqa: E402
from ipuperf.runtime.run_context import RUN  # noqa: E402


class Pair:
    def __init__(self, data: Any, label: Any, name: str = "") -> None:
        self.data, self.label, self.name = data, label, name


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Any) -> Iterator[Any]:
        yield struct.data
        yield struct.label

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Any]) -> Any:
        return Pair(*tensor_iterator, name=original_structure.name)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with RUN.fresh(CustomArgParsers):
        poptorch.registerCustomArgParser(Pair, PairParser())
        yield


class Scaled(torch.nn.Module):
    def forward(self, pair: Any) -> Any:
        return Pair(pair.data * 2 + pair.label, pair.data - 1, pair.name)


def test_objects_of_the_user_go_in_and_come_out() -> None:
    model = poptorch.inferenceModel(Scaled(), poptorch.Options().deviceIterations(2))
    x, y = torch.arange(4.0).reshape(4, 1), torch.ones(4, 1)
    found = model(Pair(x, y, "one"))
    assert (type(found), found.name) == (Pair, "one")
    torch.testing.assert_close(found.data, x * 2 + y)
    torch.testing.assert_close(model(Pair(y, x)).label, y - 1)
    with pytest.raises(poptorch.Error, match="pair: a tensor given, the model was compiled with a Pair with 2 tensors"):
        model(x)


def test_a_class_without_a_parser_is_compiled_in_and_has_to_be_the_same() -> None:
    with RUN.fresh(CustomArgParsers), pytest.raises(poptorch.Error):
        poptorch.inferenceModel(Scaled())(Pair(torch.ones(1), torch.ones(1)))


def test_batches_of_objects_are_joined_and_cut() -> None:
    pieces = [Pair(torch.arange(n, n + 3), torch.ones(3)) for n in (0, 3, 6)]
    assert [p.data.tolist() for p in rebatch(pieces, 4, drop_last=False)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize(
    ("kind", "parser", "message"), [("Pair", PairParser(), "expected a class"), (Pair, PairParser, "ICustomArgParser")]
)
def test_wrong_registrations(kind: Any, parser: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        poptorch.registerCustomArgParser(kind, parser)


class Difference(torch.nn.Module):
    def forward(self, x: Any, **named: Any) -> Any:
        return x["a"] - x["b"] * named["c"] + named["d"]


def test_dictionaries_and_named_arguments_in_any_order() -> None:
    model = poptorch.inferenceModel(Difference())
    a, b, c, d = (torch.full((1,), float(n)) for n in (1, 20, 300, 4000))
    wanted = a - b * c + d
    for inner in ({"a": a, "b": b}, {"b": b, "a": a}):
        torch.testing.assert_close(model(inner, c=c, d=d), wanted)
        torch.testing.assert_close(model(inner, d=d, c=c), wanted)
    with pytest.raises(poptorch.Error, match="x: a dict with keys"):
        model({"a": a, "other": b}, c=c, d=d)
