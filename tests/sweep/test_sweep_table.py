"""Tables: what is written is read, files of another kind or version are refused."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes

from ipuperf.sweep import SweepError, draw, plots, read_table, write_table
from ipuperf.sweep.plots import pareto_front
from ipuperf.sweep.table import FORMAT, RESULTS, table_of

ROWS = [
    {"machine": "pod4", "split": [1, 2], "width": 8, "seed": 0, "fits": True, "cycles": 10, "samples_per_second": 5.5,
     "max_tile_bytes": 100, "format": FORMAT},
    {"machine": "pod16", "split": "a", "width": 8, "seed": 0, "fits": False, "reason": "no", "cycles": 2**53 + 1,
     "samples_per_second": 9.0, "max_tile_bytes": 50, "format": FORMAT},
    {"machine": "pod4", "split": [3], "width": 16, "seed": 0, "failure": "ValueError: x, \"y\"", "format": FORMAT},
    {"machine": "pod16", "split": [1], "width": 16, "seed": 0, "fits": True, "cycles": 7,
     "samples_per_second": 0.1 + 0.2, "max_tile_bytes": 90, "format": FORMAT},
]  # fmt: skip
FACTORS = ("machine", "split", "width", "seed")


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_round_trip(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    table = table_of(ROWS, FACTORS)
    assert list(table["split"]) == ["[1, 2]", "a", "[3]", "[1]"]
    write_table(table, tmp_path / f"t.{kind}")
    found = read_table(tmp_path / f"t.{kind}")
    assert list(found.columns) == [*FACTORS, *RESULTS]
    pd.testing.assert_frame_equal(found, table, check_dtype=False, check_exact=True)


def test_values_of_mixed_types_and_lists_are_json() -> None:
    factors = {"lists": [[1], [2, 3]], "numbers": [1, 2.5], "mixed": [1, "a"], "texts": ["a", "b"]}
    table = table_of([{name: values[row] for name, values in factors.items()} for row in (0, 1)], list(factors))
    assert table[list(factors)].to_dict("list") == {
        "lists": ["[1]", "[2, 3]"],
        "numbers": [1, 2.5],
        "mixed": ["1", "a"],
        "texts": ["a", "b"],
    }


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(ROWS, FACTORS)
    write_table(table.assign(format=FORMAT + 1), tmp_path / "later.csv")
    with pytest.raises(
        SweepError, match=rf"later\.csv: of format {FORMAT + 1}, this version of ipuperf reads {FORMAT}"
    ):
        read_table(tmp_path / "later.csv")
    table.drop(columns="format").to_csv(tmp_path / "other.csv")
    with pytest.raises(SweepError, match="no column 'format'"):
        read_table(tmp_path / "other.csv")
    table.drop(columns="cycles").to_csv(tmp_path / "other.csv")
    with pytest.raises(SweepError, match="no column 'cycles'"):
        read_table(tmp_path / "other.csv")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SweepError, match="no table of `ipuperf sweep`"):
        read_table(tmp_path / "bad.json")
    with pytest.raises(SweepError, match="No such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(SweepError, match="'.xlsx' is no format of a table"):
        read_table(tmp_path / "t.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SweepError, match=r"pip install 'distributed<.*'pyarrow<"):
        write_table(table, tmp_path / "t.parquet")
    with pytest.raises(SweepError, match=r"pip install 'distributed<.*'pyarrow<"):
        read_table(tmp_path / "t.parquet")


def test_pareto_front_is_what_nothing_beats() -> None:
    frame = pd.DataFrame({"samples_per_second": [5.0, 9, 9, 1, 7], "max_tile_bytes": [10.0, 40, 30, 5, 30]})
    found = pareto_front(frame, "max_tile_bytes", "samples_per_second")
    assert list(found.index) == [3, 0, 2]


@pytest.mark.heavy
def test_plots(tmp_path: Path) -> None:
    table = table_of(ROWS, FACTORS)
    for plot in ("lines:width,cycles,machine", "lines:machine,cycles", "heatmap:machine,width,samples_per_second",
                 "pareto:max_tile_bytes,samples_per_second,machine", "pareto:cycles,max_tile_bytes"):  # fmt: skip
        draw(table, plot, tmp_path / "p.png")
        assert (tmp_path / "p.png").stat().st_size > 5_000
        (tmp_path / "p.png").unlink()


def test_machines_of_different_clocks_are_drawn_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many cycles at 1.33 and at 1.85 GHz are not the same time: the axis and the title have ms."""
    drawn: dict[str, list[Any]] = {}
    monkeypatch.setattr(Axes, "set", lambda self, **labels: drawn.update(labels))
    monkeypatch.setattr(Axes, "set_title", lambda self, title, **how: drawn.update(title=title))
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, label, **how: drawn.update({label: list(y)}))
    row = {"fits": True, "format": FORMAT}
    rows = [
        {**row, "machine": machine, "width": width, "layers": layers, "cycles": 1_330_000, "seconds": 1.33e6 / clock}
        for machine, clock in (("pod4", 1.33e9), ("bow-pod4", 1.85e9))
        for width in (1, 2)
        for layers in (1, 2)
    ]
    table = table_of(rows, ("machine", "width", "layers"))
    draw(table, "lines:width,cycles,machine", tmp_path / "p.png")
    assert drawn["ylabel"] == "time of a run in ms"
    assert drawn["title"] == "time of a run in ms by width, machine\neach point: the best of all layers"
    assert drawn["pod4"] == pytest.approx([1.0, 1.0])
    assert drawn["bow-pod4"] == pytest.approx([1.33 / 1.85] * 2)
    draw(table[table["machine"] == "pod4"], "lines:width,cycles,machine", tmp_path / "p.png")
    assert (drawn["ylabel"], drawn["pod4"]) == ("cycles of a run", [1.33e6, 1.33e6])


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        ("circles:a,b", "allowed: lines:X,Y"),
        ("lines:width", "allowed: lines:X,Y"),
        ("heatmap:machine,width", "allowed: lines:X,Y"),
        ("lines:size,cycles", "no column 'size'; allowed: machine"),
        ("lines:width,machine", "the column 'machine' has no numbers"),
        ("lines:width,seconds", "nothing to draw"),
    ],
)
def test_plots_refused(tmp_path: Path, plot: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        draw(table_of(ROWS, FACTORS), plot, tmp_path / "p.png")
    assert not list(tmp_path.iterdir())


def test_numbers_of_a_heat_map_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """White on what is dark, the lower half without its middle, and as large as columns of the longest number allow."""
    drawn: list[tuple[str, str, float]] = []
    monkeypatch.setattr(
        Axes, "text", lambda self, x, y, text, **how: drawn.append((text, how["color"], how["fontsize"]))
    )
    cells = [
        {"n": n, "m": m, "fits": True, "cycles": 100_000 * (n + m), "format": FORMAT} for n in (1, 2, 3) for m in (1, 2)
    ]
    draw(table_of(cells, ("n", "m")), "heatmap:n,m,cycles", tmp_path / "p.png")
    longest = max(len(text) for text, *_ in drawn)
    assert [colour for _, colour, _ in drawn] == ["white", "white", "black", "white", "black", "black"]
    assert {size for *_, size in drawn} == {min(10.0, plots._WIDTH / (3 * longest))}
