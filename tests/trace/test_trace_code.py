"""Table ``code``: the same folded and not, in files too; its sums are those of ``tile_memory``."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ipuperf.trace import FoldedCode, Trace, check

ARRAYS = {
    "op_id": [0, 1, -1],
    "category": [0, 0, 1],
    "ipu": [0, 0, 1],
    "first": [0, 0, 2],
    "runs": [2, 2, 1],
    "tile_from": [0, 8, 0],
    "tile_to": [4, 9, 2],
    "bytes": [40, 3, 10],
}
"""Two ops that share two runs of tiles, and code of no op."""


def folded() -> FoldedCode:
    arrays = {name: np.array(values, dtype=np.int64) for name, values in ARRAYS.items()}
    return FoldedCode(arrays, {"categories": ("vertexCode", "stack")})


@pytest.fixture(params=["folded", "plain", "loaded"])
def trace(request: pytest.FixtureRequest, synthetic: ModuleType, tmp_path: Path) -> Trace:
    build = synthetic.Builder()
    for number in (0, 1):
        build.add("ops", number, f"main/net/Op.{number}", "Op", "main", "fwd", 3, f"m.py:{number}", "")
    for tile in range(10):
        if size := 20 * (tile < 4) + 6 * (tile == 8):
            build.add("tile_memory", 0, tile, "vertexCode", size)
    for tile in (0, 1):
        build.add("tile_memory", 1, tile, "stack", 5)
    built = build.trace(num_ipus=2, tiles_per_ipu=10)
    tables = {
        "tile_memory": built.columns("tile_memory"),
        "ops": built.columns("ops"),
        "code": folded(),
        "steps": {},
        "instances": {},
    }
    of_folded = Trace(built.meta, tables)
    if request.param == "plain":
        return Trace(built.meta, {**tables, "code": of_folded.columns("code")})
    of_folded.save(tmp_path / "trace.ipt")
    return Trace.load(tmp_path / "trace.ipt") if request.param == "loaded" else of_folded


def test_ops_have_their_bytes_by_ipu_and_category(trace: Trace) -> None:
    assert check(trace) == []
    assert trace.rows("code") == 5
    rows = trace.code()[["op", "module", "line", "ipu", "category", "bytes"]].itertuples(index=False, name=None)
    assert list(rows) == [
        ("main/net/Op.0", "net", "m.py:0", 0, "vertexCode", 43),
        ("main/net/Op.1", "net", "m.py:1", 0, "vertexCode", 43),
        ("(no op)", "", "", 1, "stack", 10),
    ]


def test_a_byte_too_many_is_a_fault(trace: Trace) -> None:
    columns = dict(trace.columns("code"))
    columns["bytes"] = columns["bytes"] + np.array([0, 1, 0, 0, 0])
    said = check(trace.replaced({"code": columns}))
    assert said == ["code: vertexCode of IPU 0 is not that of tile_memory (tile 8)"]
