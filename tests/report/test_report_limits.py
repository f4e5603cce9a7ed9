"""Shares of the machine's limits against figures worked out by hand."""

import pytest

from ipuperf.report.limits import limits


def used(trace, links):
    """The limits of a trace with these links."""
    return limits(trace, {**trace.summary(), "links": links}, trace.operations_by_ipu(of_each_class=True))


def test_shares_of_the_peak_the_exchange_and_the_busiest_link(synthetic):
    build = synthetic.Builder()
    build.add("ops", 0, "main/Add", "Add", "main", "fwd", 0, "m.py:1", "float16")
    build.add("steps", 0, 0, -1, 0, "compute", 0, 60, 30.0, 4, 0, 0, 0, 100, 0, -1)
    build.add("steps", 0, 1, -1, 0, "exchange", 60, 20, 20.0, 4, 0, 9, 9, 0, 0, -1)
    for ipu in (0, 1):
        build.add("instances", ipu, 0, ipu, 0, -1, -1, 100, 80, 0)
    build.add("instances", 2, 0, 1, 0, -1, -1, 220, 80, 0)
    trace = build.trace(peak_flops_per_cycle={"float16": 5})
    links = [{"kind": "ddr", "bytes": 1, "utilisation": share} for share in (0.25, 0.5)]
    links.append({"kind": "pcie", "bytes": 0, "utilisation": 0.0})
    shares = {limit["name"]: limit["share"] for limit in used(trace, links)}
    # Three executions of 100 FLOP at 5 a cycle and of 20 cycles of exchange, in 200 cycles of two IPUs.
    assert shares == pytest.approx({"flops": 60 / 400, "exchange": 60 / 400, "ddr": 0.5})
    assert "flops" not in {limit["name"] for limit in used(build.trace(), links)}
    assert [limit["name"] for limit in used(synthetic.Builder().trace(), links)] == ["ddr"]
