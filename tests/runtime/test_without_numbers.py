"""Programs that are simulated without numbers: weights may be larger than the memory of the host."""

import tracemalloc

import numpy as np

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.trace import Trace

WIDTH = 512


class Layer(addons.Module):
    """A product with weights that count how often they are made."""

    def __init__(self, made: list[int]) -> None:
        super().__init__()
        self.made = made

    def weight(self) -> np.ndarray:
        self.made.append(len(self.made))
        return np.full((WIDTH, WIDTH), len(self.made), np.float64)

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        group = popxl.gir().replica_grouping(group_size=1)
        return x @ self.add_variable_input("weight", self.weight, popxl.float16, replica_grouping=group)


def simulated(numbers: bool, layers: int = 4) -> tuple[Trace, list[int], int]:
    """Trace, the weights that were made, and the bytes that all of them take on the host."""
    made: list[int] = []
    with use_settings(RunSettings("pod4", numbers=numbers)):
        ir = popxl.Ir(2)
        tracemalloc.start()
        with ir.main_graph, popxl.in_sequence():
            x = popxl.variable(np.ones((8, WIDTH), np.float16), name="x")
            factories, graph = Layer(made).create_graph(x.spec)
            before = tracemalloc.get_traced_memory()[0]
            buffers = addons.named_variable_buffers(factories, layers)
            for layer in range(layers):
                weights = factories.init_remote(buffers, layer, f"layer{layer}")
                assert weights.weight.shape_on_host == (2, WIDTH, WIDTH)
                (x,) = graph.bind(addons.load_remote(buffers, layer)).call(x)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        trace = popxl.Session(ir, "ipu_hw").executable.trace
    return trace, made, taken


def test_time_is_the_same_and_weights_take_no_memory() -> None:
    with_numbers, all_made, bytes_of_all = simulated(True)
    without, made, taken = simulated(False)
    assert without.summary() == with_numbers.summary()
    assert (len(all_made), len(made)) == (8, 1)
    # The first of the eight was there when the count began.
    assert bytes_of_all > 7 * 2 * WIDTH**2 > 8 * taken
