"""What modules say once, when they are imported: constants, enumerations, defaults of all functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from outcomes import check_rows

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from modulecases import PACKAGE, rows_of

from ipuperf.testing import CycleBaseline

FILES = sorted(path for path in (PACKAGE / "poptorch_geometric").rglob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_constants_and_defaults_of_every_module(file: Path, cycle_baseline: CycleBaseline) -> None:
    check_rows(Path(__file__).parent / "every_default.csv", rows_of([file]), cycle_baseline.update)
