"""Execution order of a graph and the check that in-place changes are unambiguous.

The order is a topological one over data flow and constraints. Among ready ops the one that lowers the number of live
bytes most (or raises it least) comes first, ties by op id: the same greedy aim, minimal liveness, as the upstream
scheduler. One pass then moves ops that take memory long before it is needed (the transposed weights of all layers)
down to their first reader; the upstream scheduler shifts stretches of ops, either way, until nothing improves (a
simplification named in ``docs/accuracy.md``).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

import numpy as np

from .errors import AmbiguityError, CycleError
from .graph import Graph, calling, data_of, derived
from .op import Op
from .tensor import Tensor


@derived
def dependencies(graph: Graph) -> dict[Op, set[Op]]:
    """For each op, the ops of the same graph that must come before it (data flow and constraints)."""
    needs: dict[Op, set[Op]] = {op: set() for op in graph.ops}
    for op, before in needs.items():
        for tensor in op.inputs:
            if tensor.producer in needs:
                before.add(tensor.producer)
        if op in graph.constraints:
            before.update([other for other in graph.constraints[op] if other in needs])
    return needs


@derived
def roots(graph: Graph) -> dict[Tensor, Tensor]:
    """Each tensor's storage root: follow in-place results and views back to the tensor that owns the bytes."""
    root = {tensor: tensor for op in graph.ops for tensor in op.outputs}
    for op in graph.ops:  # creation order defines before use, so producers come first
        for index, source in op.aliases().items():
            root[op.outputs[index]] = root.get(op.inputs[source], op.inputs[source])
    return root


@derived
def changes(graph: Graph) -> dict[Op, tuple[int, ...]]:
    """The ops that change inputs, with the indices of those."""
    return {op: modified for op in graph.ops if (modified := op.modified_inputs())}


class _Liveness:
    """Incremental estimate of what scheduling an op does to the number of live bytes.

    Attributes:
        reads: the storages that each op reads, each once; only those that are freed after their last reader.
        readers: the ops that read each of them.
        remaining: how many of those are still to be scheduled.
    """

    def __init__(self, graph: Graph) -> None:
        root = roots(graph)
        kept = {root.get(t, t) for t in graph.outputs}
        kept.update(data_of(graph))
        kept.update(graph.inputs)
        self.reads: dict[Op, Iterable[Tensor]] = {}
        self.readers: dict[Tensor, list[Op]] = {}
        self._allocated: dict[Op, int] = {}
        for op in graph.ops:
            read = dict.fromkeys([root.get(t, t) for t in op.inputs])
            self.reads[op] = owners = [owner for owner in read if owner not in kept]
            for owner in owners:
                self.readers.setdefault(owner, []).append(op)
            self._allocated[op] = sum([t.spec.bytes for t in op.outputs if root[t] is t])
        self.remaining = {owner: len(ops) for owner, ops in self.readers.items()}
        self._freeable = {owner: owner.spec.bytes for owner in self.readers}

    def delta(self, op: Op) -> int:
        """Bytes allocated less bytes freed if ``op`` came next."""
        change, remaining = self._allocated[op], self.remaining
        for owner in self.reads[op]:
            if remaining[owner] == 1:
                change -= self._freeable[owner]
        return change

    def after(self, order: list[Op]) -> np.ndarray:
        """Bytes live after each op of ``order``, less those that live throughout."""
        last: dict[Tensor, int] = {}
        for index, op in enumerate(order):
            for owner in self.reads[op]:
                last[owner] = index
        change = [self._allocated[op] for op in order]
        for owner, index in last.items():
            change[index] -= self._freeable[owner]
        return np.cumsum(np.array(change, dtype=np.int64))

    def gain(self, op: Op, first: tuple[int, int], place: dict[Op, tuple[int, int]]) -> int:
        """Bytes that ``op`` allocates less those that nobody else holds until ``first``, its new place."""
        held = 0
        for owner in self.reads[op]:
            if all(other is op or place[other] < first for other in self.readers[owner]):
                held += self._freeable[owner]
        return self._allocated[op] - held

    def take(self, op: Op) -> Iterable[Tensor]:
        """Account for ``op``; returns the owners whose remaining reads changed."""
        reads = self.reads[op]
        for owner in reads:
            self.remaining[owner] -= 1
        return reads


@derived
def schedule(graph: Graph) -> list[Op]:
    """Ops of ``graph`` in execution order (deterministic).

    Raises:
        CycleError: constraints and data flow contradict each other; the message names the ops.
    """
    needs = dependencies(graph)
    missing = {op: len(before) for op, before in needs.items()}
    followers: dict[Op, list[Op]] = {op: [] for op in graph.ops}
    for op, before in needs.items():
        for other in before:
            followers[other].append(op)
    live = _Liveness(graph)
    heap = [(live.delta(op), op.id, op) for op, count in missing.items() if count == 0]
    heapq.heapify(heap)
    order: list[Op] = []
    done: set[Op] = set()
    while heap:
        delta, _, op = heapq.heappop(heap)
        if op in done:
            continue
        now = live.delta(op)
        if delta != now:  # stale entry: the estimate improved since it was pushed
            heapq.heappush(heap, (now, op.id, op))
            continue
        done.add(op)
        order.append(op)
        for owner in live.take(op):
            if live.remaining[owner] == 1:
                for other in live.readers[owner]:
                    if other not in done and missing[other] == 0:
                        heapq.heappush(heap, (live.delta(other), other.id, other))
        for other in followers[op]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(heap, (live.delta(other), other.id, other))
    if len(order) != len(graph.ops):
        stuck = ", ".join(op.label for op in graph.ops if op not in done)
        raise CycleError(f"graph {graph.name or 'main'!r}: these ops wait for each other: {stuck}")
    return _shifted(order, followers, live)


def _shifted(order: list[Op], followers: dict[Op, list[Op]], live: _Liveness) -> list[Op]:
    """``order`` with ops moved down to their first follower where that shortens what is live.

    Moved are ops of one IPU that call nothing and change nothing: views, and ops whose bytes, over the steps that they
    come later, are more than what the ops in between, each a step earlier, add to what is live. The last op is looked
    at first, so that a chain moves as a whole. A place is ``(index of an op that stayed, how many moved ops before
    it)``, the latter negative.
    """
    place = {op: (index, 0) for index, op in enumerate(order)}
    bytes_after = live.after(order)
    waiting: dict[int, int] = {}
    for index in range(len(order) - 1, -1, -1):
        op = order[index]
        if not followers[op]:
            continue
        first = min([place[other] for other in followers[op]])
        host = first[0]
        if host - index <= 1 or not op.movable():
            continue
        gain = live.gain(op, first, place)
        between = bytes_after[host - 1] - bytes_after[index]
        if (gain >= 0 and op.aliases()) or gain * (host - index - 1) > between:
            waiting[host] = waiting.get(host, 0) + 1
            place[op] = (host, -waiting[host])
            bytes_after[index:host] -= gain
    return sorted(order, key=place.__getitem__) if waiting else order


def _ancestors(order: list[Op], needs: dict[Op, set[Op]], position: dict[Op, int]) -> dict[Op, int]:
    """For each op a bit set (by ``position`` in ``order``) of all ops that must come before it.

    Raises:
        KeyError: an op comes in ``order`` before one that it needs.
    """
    before: dict[Op, int] = {}
    for op in order:
        bits = 0
        for other in needs[op]:
            bits |= before[other] | (1 << position[other])
        before[op] = bits
    return before


Users = dict[Tensor, dict[Op, None]]


def _by_storage(pairs: Iterable[tuple[Op, Iterable[int]]], root: dict[Tensor, Tensor]) -> Users:
    """The ops, by the storages of their given inputs."""
    found: Users = {}
    for op, indices in pairs:
        for index in indices:
            found.setdefault(root.get(op.inputs[index], op.inputs[index]), {})[op] = None
    return found


@derived
def _changers(graph: Graph) -> Users:
    """By each storage that is changed, the ops that change it."""
    return _by_storage(changes(graph).items(), roots(graph))


@derived
def _users(graph: Graph) -> Users:
    """By each storage that is changed, all ops that use it, in creation order."""
    root = roots(graph)
    users: Users = {owner: {} for owner in _changers(graph)}
    for op in graph.ops:
        for tensor in op.inputs:
            if (owner := root.get(tensor, tensor)) in users:
                users[owner][op] = None
    return users


@derived
def precedence_of(graph: Graph) -> Precedence:
    """The :class:`Precedence` of the ops of ``graph``."""
    return Precedence(graph)


class Precedence:
    """Which ops of a graph must come before which, by data flow and constraints.

    Attributes:
        position: of each op in some order that fulfils both: that of creation where it does.
        before: for each op a bit set, by position, of all ops that must come before it.
    """

    def __init__(self, graph: Graph) -> None:
        needs = dependencies(graph)
        order = graph.ops
        self.position = {op: i for i, op in enumerate(order)}
        try:
            self.before = _ancestors(order, needs, self.position)
        except KeyError:  # that of creation does not fulfil both
            order = schedule(graph)
            self.position = {op: i for i, op in enumerate(order)}
            self.before = _ancestors(order, needs, self.position)

    def ordered(self, one: Op, other: Op) -> bool:
        """Whether one of the two must come before the other."""
        return bool((self.before[one] >> self.position[other]) & 1 or (self.before[other] >> self.position[one]) & 1)

    def unordered(self, ops: Iterable[Op], others: Iterable[Op]) -> list[tuple[Op, Op]]:
        """The pairs of two different ops, one of each kind, that are not :meth:`ordered`, each in the order of
        :attr:`position`."""
        place = self.position
        pairs = [(op, other) for op in ops for other in others if op is not other and not self.ordered(op, other)]
        return [(a, b) if place[a] < place[b] else (b, a) for a, b in pairs]


def call_order(graph: Graph) -> list[tuple[Op, Op]]:
    """Constraints (before, after) that order calls that change a tensor by reference against its other users, where
    nothing else does: as the program has them.

    Upstream does not see such a change as an ambiguity (its alias model knows a changed input only where it aliases an
    output: popart: willow/src/op.cpp, growAliasModelMulti) and leaves the order to the scheduler; the program's order
    is one that it may choose. Against an op whose result is the changed tensor the ambiguity stays.
    """
    calls = [(op, unseen) for op in calling(graph) if (unseen := op.unseen_changes())]
    if not calls:
        return []
    root = roots(graph)
    callers = _by_storage(calls, root)
    users = _users(graph)
    if all(len(users[owner]) == 1 for owner in callers):
        return []
    unseen_of = dict(calls)
    seen = _by_storage([(op, {*found}.difference(unseen_of.get(op, ()))) for op, found in changes(graph).items()], root)
    precedence, edges = precedence_of(graph), []
    for owner, changing in callers.items():
        others = [other for other in users[owner] if other not in seen.get(owner, ())]
        if not _in_order({**changing, **dict.fromkeys(others)}, changing.keys(), precedence):
            edges += precedence.unordered(changing, others)
    return edges


def check_ambiguity(graph: Graph) -> None:
    """Raise :class:`AmbiguityError` when an in-place change is not ordered against another use of the same storage.

    A later reader names the *result* of the in-place op when it wants the new value; a user of the old tensor must be
    ordered before or after it by data flow or ``in_sequence``. Calls: see :func:`call_order`.
    """
    changing = changes(graph)
    if not changing:
        return
    root, changers, users = roots(graph), _changers(graph), _users(graph)
    shared = [owner for owner, found in users.items() if len(found) > 1]
    if not shared:
        return
    precedence = precedence_of(graph)
    if all(_in_order(users[owner], changers[owner].keys(), precedence) for owner in shared):
        return
    for op, modified in changing.items():
        for index in modified:
            owner = root.get(op.inputs[index], op.inputs[index])
            for other in users[owner]:
                if other is not op and not precedence.ordered(op, other):
                    raise AmbiguityError(
                        f"Inplacing ambiguity detected. {op.where()} changes tensor {owner.id!r} in place and "
                        f"{other.where()} uses it, and nothing says which comes first; "
                        "create both inside `popxl.in_sequence(True)`, or use the result of the in-place op"
                    )


def _in_order(users: Iterable[Op], changers: Collection[Op], precedence: Precedence) -> bool:
    """Whether each of ``changers`` comes, by need, before or after every other of ``users``."""
    before, position = precedence.before, precedence.position
    used = changed = 0
    for op in sorted(users, key=position.__getitem__):
        wanted, bit = used if op in changers else changed, 1 << position[op]
        if wanted & before[op] != wanted:
            return False
        used |= bit
        changed |= bit if op in changers else 0
    return True
