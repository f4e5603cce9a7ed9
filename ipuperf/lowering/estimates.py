"""Plans as rows of the tables that ``ipuperf estimate --csv`` reads and writes, and a plan as text.

A row asks for one matrix product (``kind`` ``matmul``: G, M, K, N) or one convolution (``conv``: B, H, W, kh, kw, cin,
cout, stride, pad, groups; ``pass_`` ``fwd``, ``bwd`` or ``wu``). Cells that do not apply stay empty. So may cells with
a default: ``partials`` (f32), ``pass_`` (nonemm, fwd), ``amp`` (0.6), ``G``, ``stride`` and ``groups`` (1), ``pad``
(0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from ipuperf.base.near_names import instead_of

from .planner.alternatives import layer_cost, next_best
from .planner.arguments import chip_named, dtype_named, plan_convolution, plan_matmul
from .planner.plan import ConvolutionPlan
from .products import program_cycles

_COMMON = ("kind", "target", "dtype", "partials", "pass_", "amp")
_PRODUCT = ("G", "M", "K", "N")
_CONVOLUTION = ("B", "H", "W", "kh", "kw", "cin", "cout", "stride", "pad", "groups")

#: Columns of a table of questions and of the table of answers.
ESTIMATE_INPUTS = (*_COMMON, *_PRODUCT, *_CONVOLUTION)
ESTIMATE_OUTPUTS = ("total", "compute", "exchange", "reduction", "transform", "temp_bytes", "tiles", "program")

_DEFAULTS = {"partials": "f32", "amp": "0.6", "G": "1", "stride": "1", "pad": "0", "groups": "1"}
_LEAST = {"pad": 0}


class EstimateError(ValueError):
    """A table that cannot be read: the message names row and column."""


@dataclass(frozen=True)
class _Cells:
    """The cells of one row, by column."""

    row: int
    values: Mapping[str, str]

    def error(self, column: str, problem: object) -> EstimateError:
        return EstimateError(f"row {self.row}, column {column}: {problem}")

    def text(self, column: str, default: str = "") -> str:
        value = self.values.get(column, "").strip() or _DEFAULTS.get(column, default)
        if not value:
            raise self.error(column, "is empty")
        return value

    def number(self, column: str) -> int:
        text, least = self.text(column), _LEAST.get(column, 1)
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (value.is_integer() and value >= least):
            raise self.error(column, f"is {text!r}; a whole number of at least {least} is needed")
        return int(value)

    def checked(self, column: str, parse: Callable[[str], object], default: str = "") -> str:
        """The text of a cell that ``parse`` accepts without a ``ValueError``."""
        text = self.text(column, default)
        try:
            parse(text)
        except ValueError as error:
            raise self.error(column, error) from error
        return text


Question = Callable[[], ConvolutionPlan]


def read_questions(rows: Iterable[Mapping[str, object]], columns: Iterable[str]) -> list[Question]:
    """A function for each row that plans it; cells are checked here, so that mistakes show before any planning.

    Rows count from 1, without the header. The functions raise :class:`EstimateError` for shapes that are impossible as
    a whole (a kernel larger than the input).

    Raises:
        EstimateError: an unknown, repeated or missing column, a cell that is empty, wrong or does not apply.
    """
    names = list(columns)
    for name in names:
        if name not in ESTIMATE_INPUTS:
            raise EstimateError(f"header, column {name}: unknown{instead_of(name, ESTIMATE_INPUTS)}")
        if names.count(name) > 1:
            raise EstimateError(f"header, column {name}: is there {names.count(name)} times")
    for name in ("kind", "target", "dtype"):
        if name not in names:
            raise EstimateError(f"header, column {name}: missing")
    return [_question(_cells(number, row)) for number, row in enumerate(rows, 1)]


def _cells(number: int, row: Mapping[str, object]) -> _Cells:
    if None in row:  # csv.DictReader's key for cells beyond the header
        raise EstimateError(f"row {number}, column {len(row)}: more cells than the header has columns")
    return _Cells(number, {str(name): str(value or "") for name, value in row.items()})


def _question(cells: _Cells) -> Question:
    kind = cells.text("kind")
    if kind not in ("matmul", "conv"):
        raise cells.error("kind", f"is {kind!r}{instead_of(kind, ('matmul', 'conv'))}")
    foreign_columns = _CONVOLUTION if kind == "matmul" else _PRODUCT
    for column in foreign_columns:
        if cells.values.get(column, "").strip():
            raise cells.error(column, f"is {cells.values[column].strip()!r}, but does not apply to {kind}")
    target = cells.checked("target", chip_named)
    dtype = cells.checked("dtype", dtype_named)
    partials = cells.checked("partials", lambda text: dtype_named(text, "partials"))
    pass_ = cells.text("pass_", "nonemm" if kind == "matmul" else "fwd")
    amp = float(cells.checked("amp", _proportion))
    # Cells are read before any plan is made, so that a mistake in a later row shows at once.
    sizes = {name: cells.number(name) for name in (_PRODUCT if kind == "matmul" else _CONVOLUTION)}

    def plan() -> ConvolutionPlan:
        try:
            if kind == "matmul":
                g, m, k, n = (sizes[name] for name in _PRODUCT)
                return plan_matmul(target, g, m, k, n, dtype, partials, pass_, amp)
            return plan_convolution(
                target,
                sizes["B"],
                sizes["cin"],
                sizes["cout"],
                (sizes["H"], sizes["W"]),
                (sizes["kh"], sizes["kw"]),
                sizes["stride"],
                sizes["pad"],
                groups=sizes["groups"],
                dtype=dtype,
                partials=partials,
                pass_=pass_,
                amp=amp,
            )
        except ValueError as error:
            raise EstimateError(f"row {cells.row}, column {_blamed(str(error))}: {error}") from error

    return plan


def _proportion(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1:
        raise ValueError(f"availableMemoryProportion is {text}; allowed: above 0, at most 1")
    return value


def _blamed(message: str) -> str:
    """The column that an error of the planner is about."""
    for words, column in ((" pass is ", "pass_"), ("partials", "partials"), ("groups have to divide", "groups")):
        if words in message:
            return column
    # Too many multiplications are no fault of one column; the first dimension stands for all.
    if "multiplications" in message:
        return "M" if message.startswith("matmul") else "B"
    return "kh" if "kernel" in message else "kind"


def answer(plan: ConvolutionPlan) -> dict[str, int]:
    """A plan as a row of :data:`ESTIMATE_OUTPUTS`: the terms are for one serial pass, ``total`` is for all.

    ``program`` is :func:`~.products.program_cycles`.
    """
    terms = (plan.compute, plan.exchange, plan.reduce, plan.rearrangement)
    values = (plan.total, *terms, plan.temp_bytes, plan.tiles, program_cycles(plan))
    return dict(zip(ESTIMATE_OUTPUTS, values, strict=True))


def plan_values(plan: ConvolutionPlan) -> dict[str, object]:
    """The values of a plan by name, with the next best plan (``next_best``) and the cycles in a ``program``.

    For a pass of a fully connected layer in training, ``layer`` has the cycles of the layer.
    """
    next_plan, layer = next_best(plan), layer_cost(plan)
    return plan.values() | {
        "program": program_cycles(plan),
        "next_best": next_plan and next_plan.values(),
        "layer": layer and asdict(layer),
    }


#: Terms of a plan in the order of time: field, words.
_TERMS = (
    ("dynamic_slice", "cut out the operands of the pass"),
    ("transform_exchange", "rearrange operands and result: exchange"),
    ("transform", "rearrange operands and result: copies"),
    ("exchange_operands", "exchange operands"),
    ("tile_transform", "exchange zeros to fill up"),
    ("compute", "compute"),
    ("exchange_partials", "exchange partial sums"),
    ("reduce", "reduce or cast partial sums"),
    ("dynamic_update", "write the result of the pass or add it"),
)

#: Terms besides the serial passes.
_ONCE = (
    ("prepare", "lay out the weights for the passes"),
    ("broadcast", "bring in once"),
    ("finish", "cast the sums of the passes"),
)


def plan_text(plan: ConvolutionPlan) -> str:
    """A plan in lines: vertex, splits, cycles by term, memory, and the next best plan with its extra cycles.

    For fully connected layers in training, a line says how the layer is planned.
    """
    form = [f"operands {'exchanged' if plan.swapped else 'as they are'}"]
    form += [f"kernel axes {list(plan.expanded)} in the input channels"] if plan.expanded else []
    form += [f"axes {list(plan.flattened)} in the output channels"] if plan.flattened else []
    form += [f"{plan.combined} groups in one"] if plan.combined > 1 else []
    chip, charged = plan.request.chip, program_cycles(plan)
    lines = [
        f"{plan.total:,} cycles on {plan.tiles:,} of {chip.tiles:,} tiles of {chip.name}: {plan.vertex}",
        f"in a program: {charged:,} cycles, {charged / plan.total:.2f} times the estimate (sync, launch of workers, "
        "operands that lie otherwise)",
        f"form: {', '.join(form)}",
        f"split: field {'x'.join(map(str, plan.field))}, batch {plan.batch}, groups {plan.groups}, kernel "
        f"{'x'.join(map(str, plan.kernel))}, output channels {plan.out_split}, input channels {plan.in_split}, "
        f"serial {plan.serial}{' over input channels' if plan.serial_inputs else ''}",
        f"vertex takes at once: {plan.group_grouping} groups, {plan.in_grouping} input and {plan.out_grouping} output "
        "channels",
    ]
    terms = [(getattr(plan, name) * plan.serial, words) for name, words in _TERMS]
    terms += [(getattr(plan, name), words) for name, words in _ONCE]
    lines += [f"{cycles:>12,} {cycles / plan.total:6.1%}  {words}" for cycles, words in terms if cycles]
    limit = plan.request.limit
    lines.append(f"temporary memory: {plan.temp_bytes:,} bytes on a tile, {limit:,} allowed")
    if plan.temp_bytes > limit:
        lines.append("no plan fits: the limit was raised")
    layer = layer_cost(plan)
    if layer:
        jointly = "no joint plan fits" if layer.jointly is None else f"{layer.jointly:,} cycles jointly"
        lines.append(
            f"layer: planned {'jointly' if layer.joint else 'pass by pass'} (forward, backward and update: {jointly}, "
            f"{layer.apart:,} apart)"
        )
    next_plan = next_best(plan)
    if next_plan is None:
        return "\n".join([*lines, "next best: no other vertex or form fits"])
    more = f"{next_plan.total - plan.total:+,} cycles, {next_plan.total / plan.total - 1:+.1%}"
    # Alone, a pass may be faster than in its joint plan, so that plan is not the next best.
    words = "the pass alone" if plan.joint else "next best"
    return "\n".join([*lines, f"{words} ({more}): {next_plan.explain()}"])
