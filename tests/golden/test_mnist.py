"""The MNIST network on preset machines, and plans of matrix products.

The tables of the first machine are kept to be read, beside this file; those of the others have golden rows.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import mnist
import pytest
from executables import lines
from rows import Golden

from ipuperf.machine import load_machine
from ipuperf.testing import CycleBaseline

READABLE = mnist.MACHINES[0]
FOLDER = Path(__file__).resolve().parent / READABLE


@pytest.fixture(scope="module", autouse=True)
def front_ends(installed_front_ends: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """The network is a PopXL program."""
    with installed_front_ends():
        yield


@cache
def tables(machine: str) -> dict[str, mnist.Rows]:
    return mnist.tables(machine)


@pytest.mark.heavy
@pytest.mark.parametrize("table", ["steps", "operations"])
@pytest.mark.parametrize("machine", mnist.MACHINES)
def test_steps_and_operations(machine: str, table: str, cycle_baseline: CycleBaseline, golden: Golden) -> None:
    rows = tables(machine)[table]
    if machine == READABLE:
        cycle_baseline.check_table(rows, table, keys=mnist.KEYS[table], folder=FOLDER, rows=40)
    else:
        golden(lines(rows))


@pytest.mark.heavy
def test_plans_of_products(cycle_baseline: CycleBaseline) -> None:
    """The machines have the same tiles, so the plans are the same."""
    rows, *others = (mnist.plan_rows(load_machine(machine).chip) for machine in mnist.MACHINES)
    assert all(other == rows for other in others)
    cycle_baseline.check_table(rows, "matmul_plans", keys=mnist.KEYS["matmul_plans"], folder=FOLDER, rows=40)
