"""``ipuperf estimate``: the cycles of one product, convolution or vertex on a chip, and their parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ipuperf.cli.parameters import FilePath, Name, OutputFile, chip_names
from ipuperf.cli.terminal import echo

if TYPE_CHECKING:
    from ipuperf.lowering import ConvolutionPlan

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _options(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    def apply(function: _Function) -> _Function:
        # The last option is applied first, as if the options were written as decorators above the function.
        for option in reversed(options):
            function = option(function)
        return function

    return apply


_DTYPE = Name(lambda: ["f16", "f32"])
_CHIP = click.option(
    "--chip",
    default="gc200",
    show_default=True,
    metavar="NAME",
    type=Name(chip_names, files=True),
    help="gc2, gc200, bow, or a machine (its chip).",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
_TYPES = _options(
    click.option(
        "--dtype", default="f16", show_default=True, type=_DTYPE, help="Type of the operands and the result: f16, f32."
    ),
    click.option(
        "--partials", default="f32", show_default=True, type=_DTYPE, help="Type of the partial sums: f16, f32."
    ),
)
_AMP = click.option(
    "--amp", default=0.6, show_default=True, type=float, help="availableMemoryProportion, above 0 and at most 1."
)


@click.group(invoke_without_command=True)
@click.option(
    "--csv",
    "source",
    metavar="IN",
    type=FilePath(exists=True, dir_okay=False),
    help="Plan every row of a table.",
)
@click.option("--out", "target", metavar="OUT", type=OutputFile(), help="Where its answers go.")
@click.pass_context
def estimate(context: click.Context, source: Path | None, target: Path | None) -> None:
    """Cycles of one matrix product, convolution or vertex on a chip, and why; or of every row of a table.

    The cycles are those of PopLibs' own estimates, in tile clock cycles of one IPU. PopLibs chooses plans by them.
    "In a program" is what a simulated run is charged for the same plan.

    A table has the columns kind (matmul, conv), target (mk1, mk2), dtype, partials, pass_, amp; G, M, K, N of a matrix
    product; B, H, W, kh, kw, cin, cout, stride, pad, groups of a convolution. Cells that do not apply are empty. Its
    answers have the columns total, compute, exchange, reduction, transform (of one serial pass), temp_bytes, tiles,
    program.
    """
    if context.invoked_subcommand is not None:
        if source is not None or target is not None:
            raise click.UsageError("--csv and --out go without a command")
        return
    if source is None or target is None:
        # Without command and options, the help says what can be asked.
        if source is None and target is None:
            echo(context.get_help())
            return
        raise click.UsageError("--csv IN and --out OUT go together")
    _table(source, target)


def _table(source: Path, target: Path) -> None:
    """Answer the questions of one file in another file."""
    import csv

    from tqdm import tqdm

    from ipuperf.base.progress import shows_progress
    from ipuperf.lowering.estimates import ESTIMATE_OUTPUTS, EstimateError, answer, read_questions
    from ipuperf.trace import replacing

    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            # ``utf-8-sig`` above, as spreadsheets write a byte order mark.
            reader = csv.DictReader(file)
            questions = read_questions(reader, reader.fieldnames or ())
        with replacing(target) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ESTIMATE_OUTPUTS, lineterminator="\n")
            writer.writeheader()
            for question in tqdm(questions, desc="plans", leave=False, disable=not shows_progress()):
                writer.writerow(answer(question()))
    except EstimateError as error:
        raise click.ClickException(f"{source}: {error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise click.ClickException(f"{source}: not a CSV file: {error}") from error


def _show(find: Callable[[], ConvolutionPlan], *, as_json: bool) -> None:
    """Print the plan that ``find`` finds."""
    import json

    from ipuperf.lowering.estimates import plan_text, plan_values

    try:
        plan = find()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        echo(json.dumps(plan_values(plan), indent=2))
    else:
        echo(plan_text(plan))


@estimate.command()
@_options(_CHIP, _TYPES, _AMP, _JSON)
@click.option("--groups", default=1, show_default=True, help="Products of the same size.")
@click.option("--m", required=True, type=int, help="Rows of the first operand.")
@click.option("--k", required=True, type=int, help="Columns of the first operand, rows of the second.")
@click.option("--n", required=True, type=int, help="Columns of the second operand.")
@click.option(
    "--pass",
    "pass_",
    default="nonemm",
    show_default=True,
    metavar="PASS",
    type=Name(lambda: ["nonemm", "fcinf", "fcfwd", "fcbwd", "fcwu"]),
    help="nonemm, or of a fully connected layer fcinf, fcfwd, fcbwd, fcwu.",
)
def matmul(
    chip: str, dtype: str, partials: str, amp: float, as_json: bool, groups: int, m: int, k: int, n: int, pass_: str
) -> None:
    """The plan of a matrix product [groups, m, k] x [groups, k, n]."""
    from ipuperf.lowering import plan_matmul

    _show(lambda: plan_matmul(chip, groups, m, k, n, dtype, partials, pass_, amp), as_json=as_json)


@estimate.command()
@_options(_CHIP, _TYPES, _AMP, _JSON)
@click.option("--batch", "--b", "batch", default=1, show_default=True, help="Images.")
@click.option("--height", "--h", "height", required=True, type=int, help="Rows of an image.")
@click.option("--width", "--w", "width", type=int, help="Columns of an image.  [default: as many as rows]")
@click.option("--kh", required=True, type=int, help="Rows of the kernel.")
@click.option("--kw", type=int, help="Columns of the kernel.  [default: as many as rows]")
@click.option("--cin", required=True, type=int, help="Input channels of all groups.")
@click.option("--cout", required=True, type=int, help="Output channels of all groups.")
@click.option("--stride", default=1, show_default=True, help="In both directions.")
@click.option("--pad", default=0, show_default=True, help="Zeros on every side.")
@click.option("--groups", default=1, show_default=True, help="Groups of channels.")
@click.option(
    "--pass",
    "pass_",
    default="fwd",
    show_default=True,
    metavar="PASS",
    type=Name(lambda: ["fwd", "bwd", "wu"]),
    help="fwd, bwd (gradient of the input), wu (of the weights).",
)
def convolution(
    chip: str, dtype: str, partials: str, amp: float, as_json: bool, batch: int, height: int, width: int | None,
    kh: int, kw: int | None, cin: int, cout: int, stride: int, pad: int, groups: int, pass_: str,
) -> None:  # fmt: skip
    """The plan of one pass of a convolution."""
    from ipuperf.lowering import plan_convolution

    size = (height, height if width is None else width)
    kernel = (kh, kh if kw is None else kw)
    _show(
        lambda: plan_convolution(
            chip, batch, cin, cout, size, kernel, stride, pad, 1, groups, dtype, partials, pass_, amp
        ),
        as_json=as_json,
    )


@estimate.command()
@_options(_CHIP, _JSON)
@click.option("--name", required=True, help="A family (UnaryOp1D, ScaledAdd ...) or a part of a vertex type (relu).")
@click.option("--dtype", default="f16", show_default=True, type=_DTYPE, help="Type of the elements: f16, f32.")
@click.option("--elements", default="64,384,1000,4096", show_default=True, help="Elements on a tile, with commas.")
def vertex(chip: str, as_json: bool, name: str, dtype: str, elements: str) -> None:
    """Tile cycles of the vertices of a family for some numbers of elements on a tile."""
    import json

    from ipuperf.lowering.planner.arguments import chip_named, dtype_named
    from ipuperf.ops.vertex_families import estimate_vertices

    try:
        counts = [int(count) for count in elements.split(",")]
    except ValueError as error:
        raise click.ClickException(f"--elements is {elements!r}; whole numbers with commas are needed") from error
    try:
        estimates = estimate_vertices(name, dtype_named(dtype), counts, chip_named(chip))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        rows = [
            {
                "vertex": vertex_estimate.vertex,
                "dtype": dtype,
                "elements": count,
                "cycles": cycles,
                "low_confidence": vertex_estimate.low_confidence,
            }
            for vertex_estimate in estimates
            for count, cycles in zip(counts, vertex_estimate.cycles, strict=True)
        ]
        echo(json.dumps(rows, indent=2))
        return
    width = max(len(vertex_estimate.vertex) for vertex_estimate in estimates)
    echo(" ".join([f"{'tile cycles for elements:':{width}}", *(f"{count:>10,}" for count in counts)]))
    for vertex_estimate in estimates:
        note = "  low confidence" if vertex_estimate.low_confidence else ""
        echo(
            " ".join([f"{vertex_estimate.vertex:{width}}", *(f"{cycles:>10,}" for cycles in vertex_estimate.cycles)])
            + note
        )
