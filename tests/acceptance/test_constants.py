"""Figures about hardware stand in ``ipuperf/machine/data``: no constant of the code is one, and none is for a published
row. What cannot be tested is a number within a formula; its docstring names the source."""

import ast
import csv
import re
from collections.abc import Iterator
from pathlib import Path

from syntax import tree

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("lowering", "simulation", "ops", "pipelines")

POPLIBS = "a rule, table or estimate of PopLibs, PopART or GCL, cited beside it"
DEFINED = "what an operation or a format is"
BOOKKEEPING = (
    "how ipuperf computes: sizes of blocks and caches, order of events, limits of a search; no result depends on it, "
    "but for the last bits of sums that are cut"
)
ASSUMED = "an assumption, named in docs/accuracy/simplifications.md"

CONSTANTS = {
    POPLIBS: """
        lowering/layout.py MIN_BYTES_PER_TILE, lowering/lookups.py LEAST_INDICES REARRANGED_SPLIT,
        lowering/outlining.py HIGH_VALUE LOW_VALUE OUTLINE_THRESHOLD, lowering/planner/embedding.py LEAST_ROWS,
        lowering/planner/multi.py _SHARED_BUS, lowering/recurrences.py _GRAIN _OPERANDS _SHARDS_APART,
        lowering/planner/reductions.py _TWO_STAGES _THREE_STAGES _REDUCE_LOOP, lowering/planner/kernels.py SLIC_WIDTH,
        lowering/reductions.py INTERMEDIATE_PARTIALS BALANCED_GRAIN, ops/elementwise/comparisons.py COMPARISON
        COMPARISON_WITH_SCALAR, ops/selection/gather.py MULTI_SLICE_VECTORS, ops/work.py DEFAULT_SHARE,
        ops/updates/accumulation.py _FUSED_OPERATIONS, simulation/algorithms.py MAX_BROADCAST_BYTES,
        ops/pooling/base.py INNER_LOOP, ops/products/group_quantize.py SCALARS,
        ops/vertices.py UNARY UNARY_IN_PLACE BINARY BINARY_IN_PLACE BROADCAST_SCALAR NON_LINEARITY NON_LINEARITY_GRAD
        VECTOR SCALAR
        """,
    DEFINED: """
        lowering/lookups.py INDEX_BYTES, lowering/control_programs.py SCALAR_BYTES,
        lowering/planner/form.py POINT, lowering/planner/terms.py _FLOATS,
        lowering/planner/kernels.py _TYPE, lowering/reductions.py PARTIAL_BYTES,
        ops/elementwise/activations.py GELU_SCALE GELU_CUBE ERFC_DEGREE ERFC_LIMIT
        FLOAT64_ERFC_DEGREE FLOAT64_ERFC_LIMIT,
        ops/products/float8.py SCALES, ops/formula.py OUTPUT, ops/products/fp8_scale.py SCALES BINS SETS,
        ops/products/group_quantize.py PACKED SHIFTS BLOCK, ops/half.py _FINE _SHIFT,
        ops/recorded.py _IN _OUT FUNCTIONS _VIEWS _VALUES _WORKS,
        ops/randomness.py LEVELS, ops/selection/suppression.py _OUT, ops/pooling/resize.py NEAREST
        COORDINATES SHARPNESS, ops/selection/scatter.py COMBINED
        """,
    BOOKKEEPING: """
        lowering/again.py _PROGRAMS _NUMBERS,
        ops/recorded.py _MOST_REPEATS,
        lowering/estimates.py _LEAST, lowering/fitting.py WORTH_NAMING, lowering/outlining.py _MODULUS _BASE,
        lowering/planner/form.py _MOST_PRODUCTS, lowering/stored.py _ROW _SHIFT _AT_ONCE,
        lowering/planner/multi.py _ABOVE, lowering/rearrangements.py _GATHER _TRANSPOSE _COPY _NEAR _RESULT,
        lowering/planner/search.py _FIRST _GUESSES _GUESS_CYCLES
        _GROWTH, simulation/event_loop.py NETWORK HOST, simulation/folding.py _KEPT
        _BACKLOG _SAME, simulation/instructions.py MOST_INSTANCES MOST_CYCLES,
        simulation/simulate.py TOLD_EVERY PACKED_EVERY MOST_BEGINNINGS, simulation/party.py _BUNDLES_KEPT,
        simulation/network.py SCALE, simulation/templates.py _TEMPLATES_KEPT,
        simulation/trips.py _MOST_BLOCKS, simulation/jitter.py _LEAST_PLACE,
        simulation/samples.py PARTS CONFIDENCE BLAMED _ASKED_EVERY _STATES,
        simulation/sharing.py _RATES_KEPT _SHARINGS_KEPT _SPLITS_KEPT,
        ops/binding.py BLOCK, ops/blocks.py BLOCK,
        ops/crew.py FEWEST FEWEST_PRODUCTS GROUP MOST PIECES_PER_THREAD SLOTS,
        ops/products/unrolling.py FEWEST_COLUMNS,
        ops/selection/gather.py PIECE,
        ops/norms/shared.py BLOCK, ops/randomness.py PIECE, ops/vertex_families.py ROW INDICES
        FAMILIES, pipelines/build.py _SEED_STRIDE
        """,
    ASSUMED: """
        lowering/lookups.py MAP_CYCLES, lowering/outlining.py _LOOKED_AT, lowering/planner/candidates.py _MOST_PASSES
        FEW_PASSES, lowering/planner/originals.py _RUNGS,
        lowering/planner/layers.py _JOINT_ROWS, lowering/rearrangements.py IMAGE_CHANNELS, ops/losses/ctc.py CELL,
        ops/selection/suppression.py _OVERLAP,
        ops/vertices.py INNER_FRAGMENT REDUCTION_CYCLES
        """,
}


def listed() -> dict[str, str]:
    """``path NAME`` -> kind."""
    found = {}
    for kind, text in CONSTANTS.items():
        for item in text.split(","):
            path, *names = item.split()
            found |= {f"{path} {name}": kind for name in names}
    return found


def numbers(module: ast.Module) -> Iterator[str]:
    """Names of a module's constants that are, or hold, numbers."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
        if any(isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in ast.walk(value)):
            yield from (name for name in names if name.isupper())


def modules() -> Iterator[Path]:
    for room in ROOMS:
        # Timetables know no cycles, so their constants are none of the cost model's.
        yield from (path for path in sorted((ROOT / "ipuperf" / room).rglob("*.py")) if "schedules" not in path.parts)


def test_what_counts_as_a_constant() -> None:
    assert list(
        numbers(ast.parse("A = 3\nB: float = 2.5\nC, D = (1, 'x')\nE = 'x'\nf = 3\nG = {'a': (1, 2)}\nH = True\n"))
    ) == list("ABCDG")


def test_every_constant_of_the_cost_model_is_listed_with_its_kind() -> None:
    """A figure about hardware is no constant here: it goes to ``ipuperf/machine/data``, with unit, source and kind."""
    package = ROOT / "ipuperf"
    found = {f"{path.relative_to(package).as_posix()} {name}" for path in modules() for name in numbers(tree(path))}
    assert found - set(listed()) == set(), "a figure about hardware belongs in machine/data; else list it with its kind"
    assert set(listed()) - found == set(), "listed, but gone"


def test_assumed_constants_are_named_where_accuracy_is_told() -> None:
    told = (ROOT / "docs" / "accuracy" / "simplifications.md").read_text("utf-8")
    for name, kind in listed().items():
        path = name.split()[0]
        assert kind != ASSUMED or f"`{path}`" in told or f"{Path(path).name}`" in told, name


def test_no_published_row_is_named_in_the_cost_model() -> None:
    """Whoever writes a row's name beside a formula has fitted it to that row."""
    with (ROOT / "docs" / "reference" / "measurements.csv").open(encoding="utf-8", newline="") as lines:
        ids = {row["id"] for row in csv.DictReader(lines)}
    assert len(ids) > 250
    for path in modules():
        words = set(re.findall(r"[A-Za-z0-9_()>./-]+", path.read_text("utf-8")))
        assert not ids & words, path
