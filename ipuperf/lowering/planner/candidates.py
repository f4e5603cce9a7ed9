"""Candidates of the planner's search: forms with vertices in some numbers of serial passes, and their lower bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .bounds import bytes_of_share, least_spread, work_and_sizes
from .form import ONCE, Form, Passes, Types, forms
from .kernels import Kernel, kernels
from .plan import Request
from .reductions import least_reductions
from .splits import field_grain, useful_splits
from .terms import least_transform, set_aside_by, slices_at_least
from .vertex_bounds import least_cycles, loop_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


#: The largest number of serial passes that is tried.
_MOST_PASSES = 1024

#: Serial passes that are tried although one pass fits.
FEW_PASSES = tuple(passes for n in (2, 3, 4) for passes in (Passes(n, ahead=True), Passes(inner=n)))


@lru_cache(maxsize=1024)
def divisors(channels: int) -> tuple[int, ...]:
    """Numbers of serial passes into which ``channels`` can be divided.

    PopLibs repeats one convolution, so all passes have one size (``lib/poplin/ConvModel.cpp`` constructModel).
    """
    return tuple(n for n in range(2, min(channels, _MOST_PASSES) + 1) if channels % n == 0)


def serial_counts(channels: int) -> list[int]:
    """The divisors that are tried first; each is at least one and a half times the previous one."""
    counts: list[int] = []
    for count in divisors(channels):
        if 2 * count >= 3 * (counts[-1] if counts else 1):
            counts.append(count)
    return counts


def output_passes(form: Form) -> tuple[Passes, ...]:
    """Serial passes over output channels, with operands exchanged or not; these are tried first."""
    # Where a form exchanges the operands, the batch takes the place of the output channels.
    counts = {*serial_counts(form.out_channels), *serial_counts(form.batch)}
    return tuple(Passes(out=n, ahead=True) for n in sorted(counts))


def smaller_passes(form: Form) -> tuple[Passes, ...]:
    """Serial passes that are tried when none of :func:`output_passes` fits.

    They bring the inputs in anew in each pass, or go over input channels.
    """
    anew = (replace(passes, ahead=False) for passes in output_passes(form))
    return (*anew, *(Passes(inner=n) for n in serial_counts(form.in_channels)))


def serial_passes(form: Form) -> tuple[Passes, ...]:
    """The serial passes that are tried with every vertex."""
    return (*output_passes(form), *smaller_passes(form))


def passes_near(form: Form, count: int) -> tuple[Passes, ...]:
    """Serial passes near ``count`` passes over output channels.

    They are the divisors between half and twice as many: over output channels, with the inputs brought in once or in
    each pass, or over input channels.
    """
    outer = {*divisors(form.out_channels), *divisors(form.batch)}
    choices = [Passes(n, ahead=ahead) for n in sorted(outer) for ahead in (True, False)]
    choices += [Passes(inner=n) for n in divisors(form.in_channels)]
    # The first search has tried ``count`` passes with the inputs ahead.
    return tuple(
        passes for passes in choices if count <= 2 * passes.count < 4 * count and passes != Passes(count, ahead=True)
    )


class _Sizes(NamedTuple):
    """What the lower bounds of the bytes of a candidate are made of, whatever its passes.

    Attributes:
        products, sizes: see :func:`~.bounds.work_and_sizes`.
        weights, inputs: bytes that are set aside in several passes, and for inputs ahead of them.
        sliced: bytes of weights that are laid out for slicing.
        results: bytes of the sums of earlier passes.
    """

    products: int
    sizes: float
    weights: int
    inputs: int
    sliced: int
    results: int


@dataclass(frozen=True)
class Candidate:
    """A form with a vertex, and lower bounds of its cycles and bytes.

    Attributes:
        whole: cycles in all; ``per_pass``: further cycles in each serial pass.
        dots: further cycles of an HMAC's loops and reduction in each pass over output channels, or in all passes over
            input channels.
        transform: cycles of rearrangements in each pass; ``later``: the same without the inputs.
        transform_bytes: bytes of the rearrangements on a tile; ``later_bytes``: the same without the inputs.
        slices: cycles of slices in each of several passes.
    """

    whole: float
    per_pass: float
    transform: int
    later: int
    transform_bytes: int
    later_bytes: int
    form: Form
    kernel: Kernel
    slices: int
    dots: float = 0.0
    _held: dict[Passes, float] = field(default_factory=dict, repr=False, compare=False)
    _sizes: list[_Sizes] = field(default_factory=list, repr=False, compare=False)

    def moved(self, passes: Passes) -> float:
        """A lower bound of the cycles of rearrangements and slices.

        Each of several passes cuts out its weights, and writes its result or adds it.
        """
        slices = self.slices if passes.count > 1 else 0
        return passes.count * ((self.later if passes.ahead else self.transform) + slices)

    def least(self, passes: Passes) -> float:
        """A lower bound of the cycles of any plan in these passes."""
        return self.whole + passes.count * self.per_pass + passes.out * self.dots + self.moved(passes)

    def possible(self, passes: Passes, request: Request) -> bool:
        """Whether the channels can be divided into these passes.

        The channels are those before axes become channels, with the operands exchanged if the form has them so.
        """
        outer = request.form.batch if self.form.swapped else request.form.out_channels
        return request.form.in_channels % passes.inner == 0 and outer % passes.out == 0

    def least_bytes(self, passes: Passes, request: Request) -> float:
        """A lower bound of the bytes on a tile of any plan in these passes. ``request``: the one it was made for."""
        # A request is searched in several limits of bytes.
        if passes not in self._held:
            self._held[passes] = self._least_bytes(passes, request)
        return self._held[passes]

    def _least_bytes(self, passes: Passes, request: Request) -> float:
        sizes = self._of(request)
        # A rearrangement in each pass also has its exchange buffer; inputs ahead of the passes are set aside.
        bound: float = 2 * (self.later_bytes if passes.ahead else self.transform_bytes)
        # The weights of a fully connected layer are laid out for slicing.
        if passes.count > 1:
            bound = max(bound, sizes.sliced)
        bound = max(bound, bytes_of_share(sizes.products, sizes.sizes, passes, request.chip.tiles))
        bound += self.set_aside(passes, request)
        # Passes over input channels add to the sums of the passes before.
        return max(bound, sizes.results) if passes.inner > 1 else bound

    def set_aside(self, passes: Passes, request: Request) -> int:
        """See :func:`~.terms.set_aside`."""
        sizes = self._of(request)
        return (sizes.weights if passes.count > 1 else 0) + (sizes.inputs if passes.ahead else 0)

    def _of(self, request: Request) -> _Sizes:
        if not self._sizes:
            form, kernel, types, tiles = self.form, self.kernel, request.types, request.chip.tiles
            weights = form.groups * form.in_channels * form.out_channels * types.input
            outputs = form.batch * form.groups * form.out_channels * math.prod(axis.output for axis in form.axes)
            self._sizes.append(
                _Sizes(
                    *work_and_sizes(form, kernel, types),
                    *set_aside_by(form, kernel, types, request.chip),
                    sliced=weights // tiles if form.pass_.startswith("fc") else 0,
                    results=2 * outputs * kernel.partial_size // tiles,
                )
            )
        return self._sizes[0]


_Finder = Callable[[Form, "Chip", int, int, int], Iterable[Kernel]]


def candidates_among(request: Request, changed: Iterable[Form], find: _Finder, bound: float) -> list[Candidate]:
    """The candidates that may take ``bound`` cycles or fewer."""
    chip, types, candidates = request.chip, request.types, []
    for plain in changed:
        for kernel in find(plain, chip, types.input, types.partial, types.output):
            grain = field_grain(plain, kernel, types)
            form = replace(plain, grain=grain) if grain > 1 else plain
            (whole, per_pass), dots = least_cycles(form, kernel, chip), 0.0
            if kernel.method == "HMAC" and whole + per_pass <= bound:
                # HMAC has very many groupings, so they are held against a tighter bound.
                if least_spread(form, kernel, types, ONCE, chip) > bound:
                    continue
                dots = _least_hmac(form, kernel, types, chip)
            if whole + per_pass + dots <= bound:
                moved, slices = least_transform(form, kernel, types, chip), slices_at_least(chip)
                candidates.append(Candidate(whole, per_pass, *moved, form, kernel, slices, dots))
    return candidates


@lru_cache(maxsize=256)
def forms_of(request: Request) -> tuple[Form, ...]:
    """The forms in which a request can be worked out."""
    return tuple(forms(request.form, request.types.input))


@lru_cache(maxsize=256)
def every_candidate(request: Request) -> tuple[Candidate, ...]:
    """Every form with every vertex but HMAC."""
    return tuple(candidates_among(request, forms_of(request), kernels, math.inf))


def _least_hmac(form: Form, kernel: Kernel, types: Types, chip: Chip) -> float:
    """A lower bound of the cycles of an HMAC's loops over input channels and of reducing their partial sums.

    It is the minimum over all splits of the channels: few tiles loop long, many tiles have much to reduce.
    """
    in_groups = -(-form.in_channels // kernel.in_grouping)
    split = useful_splits(in_groups, chip.tiles)
    loops = loop_cycles(form, kernel, chip) * form.axes[-1].kernel
    return float(
        (-(-in_groups // split) * loops + least_reductions(kernel.partial_size, types.output, chip)[split]).min()
    )
