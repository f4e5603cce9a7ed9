"""What the search of the convolution planner looks at: forms with vertices, in some numbers of serial passes, and what
each of them takes and holds at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from .bounds import least_bytes, least_spread
from .form import ONCE, Form, Passes, Types, forms
from .plan import Request
from .reductions import least_reductions
from .splits import field_grain, useful_splits
from .terms import least_transform, set_aside, slices_at_least
from .vertices import Kernel, kernels, least_cycles, loop_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


#: Serial passes over output channels that are tried first.
SERIAL_PASSES = tuple(Passes(out=2**n, ahead=True) for n in range(1, 11))

#: Serial passes that are tried when none of those fits: inputs brought in anew, or over input channels.
SMALLER_PASSES = tuple(passes for n in range(1, 11) for passes in (Passes(out=2**n), Passes(inner=2**n)))


#: Serial passes that are tried although one pass fits.
FEW_PASSES = tuple(passes for n in (2, 3, 4) for passes in (Passes(n, ahead=True), Passes(inner=n)))


def passes_near(count: int) -> tuple[Passes, ...]:
    """Serial passes around a number of passes over output channels: in finer steps, with the inputs brought to the
    tiles in each of them, or over input channels."""
    step = max(1, count // 4)
    counts = range(max(2, count // 2), 2 * count, step)
    return tuple(
        passes
        for n in counts
        for passes in (Passes(n, ahead=True), Passes(n), Passes(inner=n))
        if passes != Passes(count, ahead=True)
    )


@dataclass(frozen=True)
class Candidate:
    """A form with a vertex: cycles that it takes at least in all (``whole``), on top in each serial pass (``each``),
    for rearrangements in each pass (``transform``; but for the inputs: ``later``) and slices in each of several
    (``slices``), and the bytes of the rearrangements on a tile (``held``)."""

    whole: float
    each: float
    transform: int
    later: int
    held: int
    form: Form
    kernel: Kernel
    slices: int

    def moved(self, passes: Passes) -> float:
        """Cycles that rearrangements and slices take at least: each pass of several cuts out its weights and writes its
        result (or adds it)."""
        slices = self.slices if passes.count > 1 else 0
        return passes.count * ((self.later if passes.ahead else self.transform) + slices)

    def least(self, passes: Passes) -> float:
        """No plan in these passes takes less."""
        return self.whole + passes.count * self.each + self.moved(passes)

    def possible(self, passes: Passes) -> bool:
        """Serial passes over input channels are all of one size (PopLibs repeats one convolution)."""
        return self.form.in_channels % passes.inner == 0 and self.form.out_channels >= passes.out

    def least_bytes(self, passes: Passes, request: Request) -> float:
        """No plan in these passes holds fewer bytes on a tile."""
        held, form, tiles = self.held if passes.ahead else 2 * self.held, self.form, request.chip.tiles
        if passes.count > 1 and form.pass_.startswith("fc"):  # the weights, laid out for slicing
            share = form.groups * form.in_channels * form.out_channels * request.types.input // tiles
            held = share + max(share, held)
        if passes.inner > 1:  # the sums so far
            outputs = form.batch * form.groups * form.out_channels * math.prod(axis.output for axis in form.axes)
            held = max(held, 2 * outputs * self.kernel.partial_size // tiles)
        aside = set_aside(form, self.kernel, request.types, passes, request.chip)
        return max(held, aside + least_bytes(form, self.kernel, request.types, passes, tiles))


_Finder = Callable[[Form, "Chip", int, int, int], Iterable[Kernel]]


def candidates_among(request: Request, changed: Iterable[Form], find: _Finder, bound: float) -> list[Candidate]:
    """What may take ``bound`` cycles or fewer."""
    chip, types, found = request.chip, request.types, []
    for plain in changed:
        for kernel in find(plain, chip, types.input, types.partial, types.output):
            grain = field_grain(plain, kernel, types)
            form = replace(plain, grain=grain) if grain > 1 else plain
            whole, each = least_cycles(form, kernel, chip)
            if kernel.method == "HMAC" and whole + each <= bound:
                if least_spread(form, kernel, types, ONCE, chip) > bound:
                    continue
                each += _least_hmac(form, kernel, types, chip)
            if whole + each <= bound:
                total, later, held = least_transform(form, kernel, types, chip)
                found.append(Candidate(whole, each, total, later, held, form, kernel, slices_at_least(chip)))
    return found


@lru_cache(maxsize=256)
def forms_of(request: Request) -> tuple[Form, ...]:
    """The forms in which a request can be worked out."""
    return tuple(forms(request.form, request.types.input))


@lru_cache(maxsize=256)
def every_candidate(request: Request) -> tuple[Candidate, ...]:
    """Every form with every vertex but HMAC."""
    return tuple(candidates_among(request, forms_of(request), kernels, math.inf))


def _least_hmac(form: Form, kernel: Kernel, types: Types, chip: Chip) -> float:
    """Cycles that the loops over input channels on a tile and the reduction of their partial sums take at least,
    whichever way the channels are split: few tiles loop long, many have much to reduce."""
    inner = -(-form.in_channels // kernel.in_grouping)
    split = useful_splits(inner, chip.tiles)
    loops = loop_cycles(form, kernel, chip) * form.axes[-1].kernel
    return float((-(-inner // split) * loops + least_reductions(kernel.partial_size, types.output, chip)[split]).min())
