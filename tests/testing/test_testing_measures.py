"""Bubble, overlap and throughput: hand-made traces and a count cycle by cycle."""

from typing import Any

import numpy as np
import pytest

from ipuperf.testing import bubble_share, overlap_share, throughput
from ipuperf.testing.measures import KIND_GROUPS, bubble, covered, length, overlap, union
from ipuperf.trace import KINDS, WAITING_KINDS


def two_stages(make_trace: Any) -> Any:
    """A run of 100 cycles, 10 of them the host's: IPU 0 computes 40 and is then idle, IPU 1 waits for it, is sent
    something, computes."""
    return make_trace(
        [
            (0, 0, 0, 0, 10, "host_run", ""),
            (0, 0, 0, 10, 40, "compute", "main/MatMul.1"),
            (0, 0, 0, 50, 10, "link", "main/IpuCopy.2"),
            (0, 0, 0, 60, 40, "idle", ""),
            (0, 1, 0, 0, 10, "host_run", ""),
            (0, 1, 0, 10, 30, "sync_external", "main/IpuCopy.2"),
            (0, 1, 0, 40, 10, "host_begin", "main/HostLoad.0"),
            (0, 1, 0, 50, 10, "link", "main/IpuCopy.2"),
            (0, 1, 0, 60, 35, "compute", "main/MatMul.3"),
        ],
        runs=[(0, 100)],
    )


def test_a_bubble_by_hand(make_trace: Any) -> None:
    share = bubble(two_stages(make_trace))
    assert (share.part, share.whole) == (40 + 30 + 5, 2 * 90)
    assert dict(share.contributors) == {
        "(no op) / idle": 40,
        "main/IpuCopy.2 / sync_external": 30,
        "no step": 5,
    }
    assert share.value == bubble_share(two_stages(make_trace)) == 75 / 180
    assert bubble_share(two_stages(make_trace), waiting_for_host=True) == 85 / 180


def test_a_moment_that_another_lane_works_is_no_bubble(make_trace: Any) -> None:
    trace = make_trace(
        [
            (0, 0, 0, 0, 10, "compute", ""),
            (0, 0, 0, 10, 20, "sync_external", ""),
            (0, 0, 1, 5, 15, "host_mid", ""),
        ],
        runs=[(0, 40)],
    )
    share = bubble(trace)
    assert (share.part, share.whole) == (20, 40)
    assert dict(share.contributors) == {"(no op) / sync_external": 10, "no step": 10}


def test_runs_apart_count_without_the_time_between(make_trace: Any) -> None:
    trace = make_trace([(0, 0, 0, 0, 10, "compute", ""), (0, 0, 0, 50, 5, "compute", "")], runs=[(0, 10), (50, 10)])
    assert bubble_share(trace) == 5 / 20


def test_an_ipu_that_only_waits_counts(make_trace: Any) -> None:
    trace = make_trace([(0, 0, 0, 0, 10, "compute", ""), (0, 1, 0, 0, 0, "compute", "")], runs=[(0, 10)])
    assert bubble_share(trace) == 0.5


def test_overlap_by_hand(make_trace: Any) -> None:
    trace = make_trace(
        [
            (0, 0, 0, 0, 20, "link", "main/Copy.1"),
            (0, 1, 0, 5, 10, "compute", "main/MatMul.2"),
            (0, 1, 0, 30, 10, "host_mid", "main/HostLoad.3"),
            (1, 2, 0, 30, 10, "compute", "main/MatMul.2"),  # another replica hides nothing
        ],
        runs=[(0, 40)],
        num_ipus=4,
        replicas=2,
    )
    assert overlap_share(trace, ("link", "compute")) == 0.5
    assert overlap_share(trace, ("links", ["compute", "exchange"])) == 0.5
    assert overlap_share(trace, ("host", "compute")) == 0.0
    share = overlap(trace, (("link", "host"), "compute"))
    assert (share.part, share.whole) == (10, 30)
    assert dict(share.contributors) == {"main/Copy.1 / link": 10, "main/HostLoad.3 / host_mid": 10}


@pytest.mark.parametrize("seed", range(8))
def test_shares_agree_with_a_count_cycle_by_cycle(make_trace: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    end, steps = 200, []
    kinds = np.zeros((2, 2, 2, end), dtype=object)  # replica, ipu, lane, cycle
    kinds[:] = ""
    for replica, ipu, lane in np.ndindex(2, 2, 2):
        at = int(rng.integers(0, 10))
        while at < end - 20:
            dur, kind = int(rng.integers(0, 15)), str(rng.choice(KINDS))
            steps.append((replica, 2 * replica + ipu, lane, at, dur, kind, f"main/Op.{len(steps)}"))
            kinds[replica, ipu, lane, at : at + dur] = kind
            at += dur + int(rng.integers(0, 4))
    trace = make_trace(steps, runs=[(0, end)], num_ipus=4, replicas=2)
    works = (~np.isin(kinds, ["", "host_run", *WAITING_KINDS])).any(axis=2)
    time = ~(kinds == "host_run").any(axis=2)
    share = bubble(trace)
    assert (share.part, share.whole) == (int((time & ~works).sum()), int(time.sum()))
    assert sum(cycles for _, cycles in share.contributors) >= share.part  # two lanes may wait at once
    for hidden, behind in (("host", "compute"), ("ddr", "exchange"), ("link", "sync")):
        first = np.isin(kinds, KIND_GROUPS.get(hidden, (hidden,))).any(axis=(1, 2))
        second = np.isin(kinds, KIND_GROUPS.get(behind, (behind,))).any(axis=(1, 2))
        found = overlap(trace, (hidden, behind))
        assert (found.part, found.whole) == (int((first & second).sum()), int(first.sum()))


def test_throughput_is_samples_over_the_mean_run(make_trace: Any) -> None:
    trace = make_trace([(0, 0, 0, 0, 10, "compute", "")], runs=[(0, 100), (200, 300)])
    assert throughput(trace, 20) == pytest.approx(20 / 200e-6)
    with pytest.raises(ValueError, match="samples_per_run: 0, expected a number above 0"):
        throughput(trace, 0)
    with pytest.raises(ValueError, match="no run that takes time"):
        throughput(make_trace([]), 1)


@pytest.mark.parametrize(
    ("between", "message"),
    [
        ("link", r"between: 'link', expected a pair"),
        (("link",), r"expected a pair"),
        (("lnik", "compute"), r"between: unknown kind 'lnik', allowed are compute, .* groups host, links, ddr"),
        (("links", ("compute", "link")), r"between: 'link' is on both sides"),
        (((), "compute"), r"between: no kinds on one side"),
        (("remote_load", "compute"), r"no step of kind remote_load takes time .*; it has compute, host_begin"),
    ],
)
def test_wrong_pairs_of_kinds_are_named(make_trace: Any, between: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlap_share(two_stages(make_trace), between)


def test_a_trace_of_no_time_has_no_bubble(make_trace: Any) -> None:
    with pytest.raises(ValueError, match="no IPU has any time"):
        bubble_share(make_trace([]))


def test_intervals() -> None:
    time = union(np.array([5, 0, 9, 9, 20]), np.array([8, 3, 9, 12, 21]))
    assert [values.tolist() for values in time] == [[0, 5, 9, 20], [3, 8, 12, 21]]
    assert [values.tolist() for values in union(np.array([0, 2, 1]), np.array([2, 4, 9]))] == [[0], [9]]
    assert length(time) == 10
    assert covered(np.array([1, 8, -5, 30]), np.array([6, 9, 100, 40]), time).tolist() == [3, 0, 10, 0]
    nothing = np.empty(0, dtype=np.int64)
    assert length(union(nothing, nothing)) == 0
    assert covered(np.array([1]), np.array([6]), union(nothing, nothing)).tolist() == [0]
