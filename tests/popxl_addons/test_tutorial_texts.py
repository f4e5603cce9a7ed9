"""The parts of the tutorials before MNIST: what they print is what the documents show."""

import re
from collections.abc import Callable

import numpy as np


def _plain(text: str) -> list[str]:
    """Lines without object addresses and trailing blanks, empty lines left out; variables print as ``Variable[...]``,
    as the vendor's tests want it, where the documents, which are older, have ``Tensor[...]``."""
    masked = re.sub(r"0x[0-9a-f]+", "0x", text).replace("Variable[", "Tensor[")
    return [line.rstrip() for line in masked.split("\n") if line.strip()]


def test_basic_concepts_prints_what_the_document_shows(tutorial: Callable, run_cells: Callable) -> None:
    document = tutorial("003")
    first_mnist = next(i for i, c in enumerate(document.cells) if "get_mnist_data" in c)
    fragments = ("outputs = bound_graph.call(x)\n", "call(graph, x, inputs_dict=")  # prose, not programs
    cells = [c for c in document.cells[:first_mnist] if not c.startswith(fragments)]
    _, printed = run_cells(*cells)
    expected = [line for o in document.outputs[:5] for line in _plain(o)]
    assert _plain(printed) == expected


def test_each_output_of_basic_concepts_is_compared(tutorial: Callable) -> None:
    outputs = tutorial("003").outputs[:5]
    for text in ("Linear_subgraph(0)", "two different bound graphs", "Net_subgraph(0)", "NetOutlined", "DotTree func"):
        assert sum(text in o for o in outputs) == 1


def test_remote_variables_prints_what_the_document_shows(tutorial: Callable, run_cells: Callable) -> None:
    document = tutorial("001")
    _, printed = run_cells(document.cell("class Add(addons.Module)"))
    assert _plain(printed) == _plain(document.output("load_remote_subgraph"))


def test_remote_variables_of_the_later_document(tutorial: Callable, run_cells: Callable) -> None:
    document, earlier = tutorial("000"), tutorial("001")
    _, printed = run_cells(document.cell("import argparse"), document.cell("class Add(addons.Module)"))
    assert _plain(printed) == _plain(earlier.output("load_remote_subgraph"))


def test_remote_buffers_hold_the_updated_weights(tutorial: Callable, run_cells: Callable) -> None:
    program, _ = run_cells(tutorial("001").cell("class Add(addons.Module)"))
    session = program["session"]
    for name, value in (("remote_vars_0", 2.0), ("remote_vars_1", 3.0)):
        data = session.get_tensor_data(program[name].weight)
        np.testing.assert_array_equal(data, np.full(5, value, np.float32))
