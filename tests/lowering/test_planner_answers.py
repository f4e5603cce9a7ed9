"""What the planner answers to plain calls, also with each argument spoiled, and to rows of a table of questions."""

from __future__ import annotations

from typing import Any

import pytest
from answers import asked, listed, spoiled
from rows import Golden

from ipuperf import lowering
from ipuperf.lowering import estimates
from ipuperf.lowering.planner import originals, works
from ipuperf.machine import load_machine, load_scaled
from ipuperf.ops.work import MatMul

CHIP = load_machine("gc200-1").chip.with_tiles(24)


def plans(*rows: dict[str, str]) -> list[Any]:
    """Plans of rows of questions."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [estimates.answer(question()) for question in estimates.read_questions(rows, columns)]


def row(text: str) -> dict[str, str]:
    """``kind=conv B=2`` as cells."""
    return dict(cell.split("=") for cell in text.split())


def of(plan: Any) -> tuple[Any, ...]:
    """Total, bytes and text of a plan."""
    return plan.total, plan.temp_bytes, plan.explain()


NAMES = {
    **vars(estimates), **vars(works), "plan_matmul": lowering.plan_matmul, "chip_named": lowering.chip_named,
    "plan_convolution": lowering.plan_convolution, "ways": originals.ways, "CHIP": CHIP, "MatMul": MatMul,
    "load_scaled": load_scaled, "plans": plans, "row": row, "of": of,
}  # fmt: skip
SPOILED = {
    "product": 'plan_matmul(CHIP, 1, 16, 32, 24, "f16", "f16", "nonemm", 0.5, "f16")',
    "layer": 'plan_matmul(CHIP, 2, 6, 20, 24, "f32", "f32", "fcfwd", 0.01, "f32")',
    "convolution": 'plan_convolution(CHIP, 2, 4, 8, (9, 8), 3, 1, 1, 1, 2, "f16", "f32", "wu", 0.5, "f16")',
}
WAYS = [(key, factor, pass_) for pass_ in ("nonemm", "fcbwd")
        for key, factor in (("chip.tiles", 0.02), ("chip.exchange_rate", 0.5),
                            ("chip.bytes_per_tile", 0.01))]  # fmt: skip
ROWS = """
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24
kind=matmul target=mk1 dtype=f32 M=16 K=32 N=24 G=3 pass_=fcwu amp=0.1
kind=matmul target=gc200 dtype=f16 M=16 K=32
kind=matmul target=gc200 dtype=f16 M=0 K=32 N=24
kind=matmul target=gc200 dtype=f16 M=1.5 K=32 N=24
kind=matmul target=gc200 dtype=f16 M=x K=32 N=24
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 kh=1
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 pass_=fwd
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 amp=0
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 amp=1
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 amp=1.01
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 amp=half
kind=matmul target=gc200 dtype=f16 M=16 K=32 N=24 partials=f8
kind=matmul target=gc200 dtype=f32 M=16 K=32 N=24 partials=f16
kind=matmul target=gc200 dtype=f16 M=99999999 K=99999999 N=99999
kind=matmul target=gc200 dtype=f16 Q=1
kind=conv target=gc2 dtype=f16 B=2 cin=4 cout=8 H=9 W=8 kh=3 kw=3
kind=conv target=gc2 dtype=f16 B=2 cin=4 cout=8 H=9 W=8 kh=3 kw=3 stride=2 pad=1 groups=2 pass_=wu amp=0.2
kind=conv target=gc2 dtype=f16 B=2 cin=4 cout=8 H=2 W=2 kh=3 kw=3
kind=conv target=gc2 dtype=f16 B=2 cin=4 cout=8 H=9 W=8 kh=3 kw=3 groups=3
kind=conv target=gc2 dtype=f16 B=2 cin=4 cout=8 H=9 W=8 kh=3 kw=3 pad=-1
kind=conv target=gc2 dtype=f16 B=999999 cin=99999 cout=99999 H=999 W=8 kh=3 kw=3
kind=conv target=gc2 dtype=f16 B=2 M=3
kind=fc target=gc2 dtype=f16
kind=matmul target=gc3 dtype=f16
kind=matmul target=gc2 dtype=i8
kind=matmul target=gc2
"""


@pytest.mark.parametrize("name", SPOILED)
def test_every_spoiled_call(name: str, golden: Golden) -> None:
    said = [f"{change}: {asked(text, NAMES)}" for change, text in spoiled(SPOILED[name])]
    golden([asked(SPOILED[name], NAMES), *said])


@pytest.mark.parametrize(("key", "factor", "pass_"), WAYS)
def test_plans_of_changed_chips(key: str, factor: float, pass_: str, golden: Golden) -> None:
    """The plan that is searched for, and that of the chip as it was."""
    item = f"MatMul(1, 16, 64, 48, FLOAT16, FLOAT16, FLOAT16, {pass_!r})"
    request = f'request_of_product(load_scaled("gc200-1", {{{key!r}: {factor}}}).chip, {item})'
    golden({"answer": asked(f"[of(way[0]) for way in ways({request})]", NAMES)})


def test_every_row_of_a_table(golden: Golden) -> None:
    golden({row: asked(f'plans(row("{row}"))', NAMES) for row in listed(ROWS)})


def test_chips_by_name(golden: Golden) -> None:
    names = ("gc2", "MK1", "mk2", "bow", "pod4", "pod5", "x.toml")
    golden({name: asked(f"chip_named({name!r}).name, chip_named({name!r}).tiles", NAMES) for name in names})
