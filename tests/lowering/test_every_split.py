"""What the planner knows of a convolution, as golden rows: every form, vertex and split with all its terms, the bounds
of each, joint plans of layers, and the plans it takes, on chips of few tiles and of little memory."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from executables import digest
from plans import CONVOLUTIONS, LAYER, PASSES, PRODUCTS, TYPES
from rows import Golden

from ipuperf.lowering.estimates import plan_text
from ipuperf.lowering.planner import bounds, joint, kernels, vertex_bounds, vertices
from ipuperf.lowering.planner.alternatives import layer_cost, next_best
from ipuperf.lowering.planner.candidates import Candidate, candidates_among, every_candidate, forms_of, passes_near
from ipuperf.lowering.planner.form import ONCE, Passes, flatten_field, swap
from ipuperf.lowering.planner.plan import ConvolutionPlan, Request
from ipuperf.lowering.planner.splits import candidate_splits, split_space
from ipuperf.lowering.planner.terms import moves, near_cycles, operand_terms, set_aside, with_reduction
from ipuperf.lowering.planner.works import plan_convolution, plan_product, request_of, request_of_product
from ipuperf.machine import Chip, load_machine
from ipuperf.ops.work import Convolution, MatMul

CHIPS = {f"{name}, {tiles} tiles": replace(load_machine(name).chip, tiles=tiles)
         for name, tiles in (("gc200-1", 24), ("gc2-1", 30))}  # fmt: skip
WAYS = (Passes(2, ahead=True), Passes(2), Passes(inner=2), Passes(3, ahead=True))
VERTICES = 6
"""So many vertices of each request are split in one pass, the others in one of these ways."""
WORKS = {**{f"product {name}": MatMul(*shape, *TYPES["half"]) for name, shape in PRODUCTS.items()},
         **{f"convolution {name}": item for name, item in CONVOLUTIONS.items()}}  # fmt: skip
_PASSES = [(name, pass_) for name, item in WORKS.items()
           for pass_ in (PASSES if isinstance(item, Convolution) else LAYER)]  # fmt: skip
CASES = {
    f"{name} {pass_} {types} {chip}": (name, pass_, types, chip)
    for turn in (0, 1)
    for (name, pass_), types, chip in zip(
        _PASSES, itertools.islice(itertools.cycle(TYPES), turn, None), itertools.cycle(CHIPS), strict=False
    )
}
FEW = list(CASES)[: len(_PASSES)]


def work_of(case: str, **changes: Any) -> tuple[Chip, Convolution | MatMul]:
    """Chip and work of a case."""
    name, pass_, types, chip = CASES[case]
    dtypes = dict(zip(("input_dtype", "output_dtype", "partials_dtype"), TYPES[types], strict=True))
    return CHIPS[chip], replace(WORKS[name], pass_=pass_, **dtypes, **changes)


def request_for(case: str) -> Request:
    """What a case asks of the planner."""
    chip, item = work_of(case)
    return request_of(chip, item) if isinstance(item, Convolution) else request_of_product(chip, item)


def plan_for(case: str, share: float) -> ConvolutionPlan:
    """The plan within a share of a tile's memory."""
    chip, item = work_of(case, available_memory_proportion=share)
    return plan_convolution(chip, item) if isinstance(item, Convolution) else plan_product(chip, item)


class Sums:
    """Check sums of vectors, by name."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def add(self, **vectors: Any) -> None:
        for name, values in vectors.items():
            array = np.asarray(values)
            text = array.astype(np.int64).tobytes() if array.dtype.kind != "f" else shown(array).encode()
            self.rows[name] = zlib.crc32(text, self.rows.get(name, 0))

    def row(self) -> dict[str, str]:
        return {name: f"{value:08x}" for name, value in self.rows.items()}


def shown(floats: Any) -> str:
    """Numbers to six digits: no platform's last digit counts."""
    return " ".join(f"{value:.6g}" for value in np.ravel(floats).tolist())


def priced(candidate: Candidate, passes: Passes, request: Request, sums: Sums) -> int:
    """All splits of a candidate with their terms."""
    form, kernel, types, chip = candidate.form, candidate.kernel, request.types, request.chip
    space = split_space(form, kernel, types, passes, np.inf, chip)
    grid = candidate_splits(space, np.inf, chip) if space else None
    if space is None or grid is None:
        return 0
    compute = vertices.vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
    terms = with_reduction(operand_terms(form, kernel, grid, compute, types, passes, chip), kernel, grid, types, passes,
                           chip)  # fmt: skip
    flat = (np.concatenate([np.atleast_1d(each) for each in (*grid.field, *grid.kernel)]), grid.batch, grid.groups)
    sums.add(grid=np.concatenate([*flat, grid.out_split, grid.in_split, grid.tiles, grid.sharers, grid.depth]))
    sums.add(space=np.concatenate([space.least, space.inputs, space.sums, space.weights, space.work, space.arrive,
                                   space.moved, space.fixed]))  # fmt: skip
    sums.add(**terms)
    return len(grid.tiles)


def known(candidate: Candidate, request: Request) -> str:
    """What is known of a form with a vertex before it is split."""
    form, kernel, types, chip = candidate.form, candidate.kernel, request.types, request.chip
    floats = [getattr(vertex_bounds, f"{name}_cycles")(form, kernel, *((chip,) if name in ("loop", "start") else ()))
              for name in ("step", "loop", "turn", "clear", "start")]  # fmt: skip
    floats += vertex_bounds.least_cycles(form, kernel, chip)
    for passes in (ONCE, *WAYS):
        floats += [bounds.least_spread(form, kernel, types, passes, chip), candidate.least(passes),
                   bounds.least_bytes(form, kernel, types, passes, chip.tiles), candidate.least_bytes(passes, request),
                   set_aside(form, kernel, types, passes, chip), candidate.possible(passes, request)]  # fmt: skip
    moved = [astuple(move) for move in moves(form, kernel, types, chip)]
    whole = near_cycles(form, kernel, types, chip.tiles, chip), vertex_bounds.work_asked(form, kernel)
    return f"{astuple(form)} {astuple(kernel)} {kernel.name(form)} {moved} {whole} {shown(floats)}"


def check_splits(cases: Sequence[str], golden: Golden) -> None:
    sums, texts, count = Sums(), [], 0
    for request in map(request_for, cases):
        dots = candidates_among(request, forms_of(request), kernels.hmac_kernels, np.inf)
        for number, candidate in enumerate((*every_candidate(request), *dots[:VERTICES])):
            texts.append(known(candidate, request))
            count += priced(candidate, ONCE if number < VERTICES else WAYS[number % len(WAYS)], request, sums)
        texts.append(str([astuple(passes) for passes in passes_near(request.form, 4)]))
    golden({"splits": count, "candidates": len(texts), "known": digest(texts), **sums.row()})


@pytest.mark.parametrize("first", range(12))
def test_every_split_of_products(first: int, golden: Golden) -> None:
    check_splits([case for case in CASES if case.startswith("product") and "large" not in case][first::12], golden)


@pytest.mark.parametrize("first", range(25))
def test_every_split_of_convolutions(first: int, golden: Golden) -> None:
    check_splits([case for case in CASES if case.startswith("convolution")][first::25], golden)


def joint_row(name: str, types_name: str, chip: Chip, sums: Sums) -> list[str]:
    """Splits of a layer's joint plans, with the bounds of each and the best of all, of those that hold half as much,
    and of those below its own cycles."""
    request = request_of_product(chip, MatMul(*PRODUCTS[name], *TYPES[types_name], pass_="fcfwd"))
    types, form = request.types, flatten_field(swap(request.form))
    texts = []
    for kernel in itertools.islice(joint._forward_kernels(form, chip, types, np.inf), VERTICES):
        parts = joint.layer_passes(form, kernel, chip, types)
        if parts is None:
            continue
        texts.append(f"{parts} {shown([joint._least(parts, types, chip), joint._least_exchange(parts, types, chip)])}")
        for passes in (ONCE, Passes(2, ahead=True), Passes(5)):
            splits, best = joint._splits(parts[0], passes, chip), None
            texts.append(str(splits is None))
            if splits is not None:
                sums.add(least=np.concatenate(joint._least_of_splits(splits, parts, passes, types, chip)))
            for within in range(4):
                limit, bound = (
                    (np.inf, np.inf) if best is None or not within
                    else (best.temp_bytes // 2, np.inf) if within == 1 else (np.inf, best.total + within - 2)
                )  # fmt: skip
                first, layer = joint.cheapest_splits(parts, passes, types, limit, (bound, np.inf), chip)
                texts.append(shown([first, layer.total if layer else -1, layer.temp_bytes if layer else -1]))
                best = layer or best
                if layer:
                    sums.add(terms=np.concatenate([value for terms in layer.terms for value in terms.values()]))
    return texts


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("types", ["half", "float"])
@pytest.mark.parametrize("names", ["odd groups", "layer vector", "deep"])
def test_every_joint_split(names: str, types: str, chip: str, golden: Golden) -> None:
    sums = Sums()
    texts = [joint_row(name, types, CHIPS[chip], sums) for name in names.split()]
    golden({"known": digest(texts), **sums.row()})


def check_plans(case: str, golden: Golden) -> None:
    row: dict[str, Any] = {}
    for share in (0.6, 0.02, 0.0005):
        plan = plan_for(case, share)
        other, layer = next_best(plan), layer_cost(plan)
        texts = [plan.explain(), plan_text(plan), other and other.values(), layer and astuple(layer)]
        row |= {f"total {share}": plan.total, f"plan {share}": digest((plan.values(), texts))}
    golden(row)


@pytest.mark.parametrize("case", [c for c in FEW if c.startswith("product") and "large" not in c])
def test_plans_of_products(case: str, golden: Golden) -> None:
    check_plans(case, golden)


@pytest.mark.parametrize("case", [c for c in FEW if c.startswith("convolution")])
def test_plans_of_convolutions(case: str, golden: Golden) -> None:
    check_plans(case, golden)
