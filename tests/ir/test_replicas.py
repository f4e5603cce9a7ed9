"""Replica groupings against an enumeration of their groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.ir import Grouping, ReplicaGrouping, grouping_of


def members(assignment: tuple[int, ...]) -> list[list[int]]:
    """Replicas of each group, ascending."""
    return [[r for r, g in enumerate(assignment) if g == group] for group in sorted(set(assignment))]


def regular_groupings(most: int = 24) -> list[ReplicaGrouping]:
    sizes = range(1, most + 1)
    return [ReplicaGrouping(n, s, k) for n in (6, 8, 16, 24) for s in sizes for k in sizes if n % (s * k) == 0]


@pytest.mark.parametrize("grouping", regular_groupings(), ids=str)
def test_transpose_takes_the_kth_member_of_each_group(grouping: ReplicaGrouping) -> None:
    rows = members(grouping.assignment)
    assert members(grouping.transpose().assignment) == [list(column) for column in zip(*rows, strict=True)]
    assert grouping.transpose().transpose() == grouping


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_division_into_groups(count: int, size: int, random: object) -> None:
    shuffled = [g for g in range(count) for _ in range(size)]
    random.shuffle(shuffled)
    order = list(dict.fromkeys(shuffled))
    assignment = tuple(order.index(g) for g in shuffled)
    grouping: Grouping = grouping_of(assignment)
    assert (grouping.assignment, grouping.num_groups, grouping.group_size) == (assignment, count, size)
    assert [list(m) for m in grouping.groups] == members(assignment)
    finest = grouping.finest()
    assert all(len({assignment[r] for r in group}) == 1 for group in finest.groups)
    same = [g for g in regular_groupings_of(count * size) if g.assignment == assignment]
    assert grouping.regular == bool(same)
    if same:
        assert grouping == finest == same[0]


def regular_groupings_of(replicas: int) -> list[ReplicaGrouping]:
    return [
        ReplicaGrouping(replicas, s, k)
        for s in range(1, replicas + 1)
        for k in range(1, replicas + 1)
        if replicas % (s * k) == 0
    ]


@pytest.mark.parametrize(
    ("assignment", "finest"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3]),
        ([0, 1, 1, 0, 0, 1, 1, 0], list(range(8))),
        ([0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1], list(range(16))),
    ],
)
def test_the_regular_grouping_behind_an_irregular_one(assignment: list[int], finest: list[int]) -> None:
    assert list(grouping_of(assignment).finest().assignment) == finest


@pytest.mark.parametrize("assignment", [[1, 1, 0, 0], [0, 0, 2, 2], [1, 1, 2, 2], [0, 0, 0, 1], [0, 1, 1, 2]])
def test_assignments_are_not_renumbered(assignment: list[int]) -> None:
    with pytest.raises(ValueError, match="assignment"):
        grouping_of(assignment)
