"""The planner: how one pass of a convolution, or a matrix product, is split over the tiles of an IPU.

The method is that of PopLibs (``docs/reference/planner.md``; ``lib/poplin/ConvModel.cpp``). Every transformed form
(:mod:`.form`) is tried with every vertex (:mod:`.vertices`) and every useful split of batch, field, groups, kernel and
channels (:mod:`.splits`). The cheapest plan (:mod:`.plan`, a value) whose temporary memory fits is chosen. Its cost is
in :mod:`.terms` and :mod:`.reductions`, lower bounds of it in :mod:`.bounds`.

What is searched and how: :mod:`.candidates`, :mod:`.search`. Serial passes go over output or input channels. Passes of
a fully connected layer in training are planned jointly when that is cheaper for all three (:mod:`.layers`,
:mod:`.joint`).
Lowering asks with works (:mod:`.works`), people with plain arguments (:mod:`.arguments`); what else there was beside a
plan is searched when asked (:mod:`.alternatives`).

Lookups and updates of tables by indices have a planner of their own (:mod:`.embedding`).

Simplifications (``docs/accuracy/simplifications.md``): of the numbers of serial passes that divide the
channels some are tried, and all near to the best of them with the likeliest vertices; where one pass fits, up to four
with the vertex of that plan.
"""
