"""Runs functions of tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.ops.transfers.streams import HostStore

Arrays = Mapping[str, np.ndarray]


def _run(write: Callable[..., Any], arrays: Arrays, runs: int = 1) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Results of ``write(**tensors)`` in the last of ``runs`` runs, and what the variables hold afterwards."""
    program = ir.Ir()
    main = program.main_graph
    variables = {}
    for name, array in arrays.items():
        spec = ir.TensorSpec(array.shape, ir.dtype_of(array))
        variables[name] = ir.Variable(name, spec, main, array.copy(), program.grouping(1, 1))
        main.add(variables[name])
    with ir.CONTEXT.use_graph(main), ir.CONTEXT.sequence(True):
        made = write(**variables)
    results = [] if made is None else list(made) if isinstance(made, (list, tuple)) else [made]
    streams = []
    for result in results:
        streams.append(ir.Stream(f"s{len(streams)}", result.spec, main, "d2h"))
        main.add(streams[-1])
        main.create(HostStore, [result], [], stream=streams[-1])
    evaluator = Evaluator(program)
    evaluator.load_variables()
    for _ in range(runs):
        found = evaluator.run()
    return [found[s][0, 0] for s in streams], {n: evaluator.variables[v][0] for n, v in variables.items()}


@pytest.fixture
def run() -> Callable[..., Any]:
    """See :func:`_run`."""
    return _run
