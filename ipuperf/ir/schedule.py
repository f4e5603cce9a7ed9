"""Execution order of a graph, and the check that in-place changes are unambiguous.

The order is a topological one over data flow and constraints. Among ready ops, the one that lowers the number of live
bytes most (or raises it least) comes first; ties go by op id. The upstream scheduler has the same greedy aim, minimal
liveness. One pass then moves ops that take memory long before it is needed (the transposed weights of all layers) down
to their first reader. The upstream scheduler shifts stretches of ops, either way, until nothing improves (a
simplification named in ``docs/accuracy/simplifications.md``).
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
    predecessors_of: dict[Op, set[Op]] = {op: set() for op in graph.ops}
    for op, predecessors in predecessors_of.items():
        for tensor in op.inputs:
            if tensor.producer in predecessors_of:
                predecessors.add(tensor.producer)
        if op in graph.constraints:
            predecessors.update(
                [predecessor for predecessor in graph.constraints[op] if predecessor in predecessors_of]
            )
    return predecessors_of


@derived
def in_chain(graph: Graph) -> bool:
    """Whether every op has to come right after the one made before it: the creation order is then the only one."""
    earlier: set[Op] = set()
    previous: Op | None = None
    for op, predecessors in dependencies(graph).items():
        # The second condition is for operands and constraints that came later than the op.
        if not (previous is None or previous in predecessors) or not predecessors <= earlier:
            return False
        earlier.add(op)
        previous = op
    return True


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
    """The ops that change inputs, with the indices of these inputs."""
    return {op: modified for op in graph.ops if (modified := op.modified_inputs())}


class _Liveness:
    """Estimates, op by op, how scheduling an op changes the number of live bytes.

    Attributes:
        reads: the storages that each op reads, each once; only those that are freed after their last reader.
        readers: the ops that read each storage.
        remaining: how many of those readers are still to be scheduled.
    """

    def __init__(self, graph: Graph) -> None:
        root = roots(graph)
        kept_owners = {root.get(tensor, tensor) for tensor in graph.outputs}
        # Results, data and inputs of the graph live throughout, so no op frees them.
        kept_owners.update(data_of(graph))
        kept_owners.update(graph.inputs)
        self.reads: dict[Op, Iterable[Tensor]] = {}
        self.readers: dict[Tensor, list[Op]] = {}
        self._allocated: dict[Op, int] = {}
        for op in graph.ops:
            read = dict.fromkeys([root.get(tensor, tensor) for tensor in op.inputs])
            self.reads[op] = owners = [owner for owner in read if owner not in kept_owners]
            for owner in owners:
                self.readers.setdefault(owner, []).append(op)
            self._allocated[op] = sum([tensor.spec.bytes for tensor in op.outputs if root[tensor] is tensor])
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
        """Bytes live after each op of ``order``, without those that live throughout."""
        last_reader: dict[Tensor, int] = {}
        for index, op in enumerate(order):
            for owner in self.reads[op]:
                last_reader[owner] = index
        # Freed after the step of the last reader, as operands live while their reader runs.
        change = [self._allocated[op] for op in order]
        for owner, index in last_reader.items():
            change[index] -= self._freeable[owner]
        return np.cumsum(np.array(change, dtype=np.int64))

    def gain(self, op: Op, target_place: tuple[int, int], place: dict[Op, tuple[int, int]]) -> int:
        """Bytes saved at each step when ``op`` moves down to ``target_place``.

        These are the bytes that it allocates, less those that its operands then keep alive because all their other
        readers come before ``target_place``.
        """
        freed_bytes = 0
        for owner in self.reads[op]:
            if all(reader is op or place[reader] < target_place for reader in self.readers[owner]):
                freed_bytes += self._freeable[owner]
        return self._allocated[op] - freed_bytes

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
    # Programs made in sequence, such as pipelines, leave nothing to choose.
    if in_chain(graph):
        return list(graph.ops)
    predecessors_of = dependencies(graph)
    missing = {op: len(predecessors) for op, predecessors in predecessors_of.items()}
    followers: dict[Op, list[Op]] = {op: [] for op in graph.ops}
    for op, predecessors in predecessors_of.items():
        for follower in predecessors:
            followers[follower].append(op)
    live = _Liveness(graph)
    # The op id breaks ties, which makes the order independent of hashes.
    heap = [(live.delta(op), op.id, op) for op, count in missing.items() if count == 0]
    heapq.heapify(heap)
    order: list[Op] = []
    done: set[Op] = set()
    while heap:
        delta, _, op = heapq.heappop(heap)
        # Improved estimates are pushed beside the old ones, so an op may come up again.
        if op in done:
            continue
        current_delta = live.delta(op)
        if delta != current_delta:  # stale entry: the estimate improved since it was pushed
            heapq.heappush(heap, (current_delta, op.id, op))
            continue
        done.add(op)
        order.append(op)
        for owner in live.take(op):
            # Its last reader now frees the storage, so the estimates of waiting readers improve.
            if live.remaining[owner] == 1:
                for follower in live.readers[owner]:
                    if follower not in done and missing[follower] == 0:
                        heapq.heappush(heap, (live.delta(follower), follower.id, follower))
        for follower in followers[op]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(heap, (live.delta(follower), follower.id, follower))
    if len(order) != len(graph.ops):
        stuck = ", ".join(op.label for op in graph.ops if op not in done)
        raise CycleError(f"graph {graph.name or 'main'!r}: these ops wait for each other: {stuck}")
    return _shifted(order, followers, live)


def _shifted(order: list[Op], followers: dict[Op, list[Op]], live: _Liveness) -> list[Op]:
    """Move ops of ``order`` down to their first follower where that reduces what is live.

    Candidates are ops on one IPU that call nothing and change nothing. A view moves where it costs nothing. Another op
    moves when its bytes, over the steps that it comes later, exceed what the ops in between, each a step earlier, add
    to what is live. The last op is considered first, so that a chain moves as a whole. A place is ``(index of an op
    that stayed, minus the number of ops moved before it so far)``.
    """
    place = {op: (index, 0) for index, op in enumerate(order)}
    bytes_after = live.after(order)
    moved_before: dict[int, int] = {}
    for index in range(len(order) - 1, -1, -1):
        op = order[index]
        if not followers[op]:
            continue
        target_place = min([place[follower] for follower in followers[op]])
        anchor_index = target_place[0]
        # The op already stands right before its follower, or must not move.
        if anchor_index - index <= 1 or not op.movable():
            continue
        gain = live.gain(op, target_place, place)
        # What the ops in between add, each of them for one step, comes to this difference.
        cost = bytes_after[anchor_index - 1] - bytes_after[index]
        if (gain >= 0 and op.aliases()) or gain * (anchor_index - index - 1) > cost:
            moved_before[anchor_index] = moved_before.get(anchor_index, 0) + 1
            place[op] = (anchor_index, -moved_before[anchor_index])
            bytes_after[index:anchor_index] -= gain
    return sorted(order, key=place.__getitem__) if moved_before else order


_Ancestors = tuple[int, int]
"""Positions of ops in an order: all below the first number, and those of a bit set that begins at it."""


def _ancestors(order: list[Op], predecessors_of: dict[Op, set[Op]], position: dict[Op, int]) -> dict[Op, _Ancestors]:
    """For each op the positions (in ``order``) of all ops that must come before it.

    Ops that are made in sequence have all earlier ones before them, so their bit sets are short.

    Raises:
        KeyError: ``order`` has an op before one that it needs.
    """
    ancestors: dict[Op, _Ancestors] = {}
    for op in order:
        found = [(*ancestors[predecessor], position[predecessor]) for predecessor in predecessors_of[op]]
        first = max([below for below, _, _ in found], default=0)
        bits = 0
        for below, more, place in found:
            bits |= more >> (first - below)
            if place >= first:
                bits |= 1 << (place - first)
        # Ones at the begin belong to what is below.
        ones = (~bits & (bits + 1)).bit_length() - 1
        ancestors[op] = (first + ones, bits >> ones)
    return ancestors


Users = dict[Tensor, dict[Op, None]]


def _by_storage(pairs: Iterable[tuple[Op, Iterable[int]]], root: dict[Tensor, Tensor]) -> Users:
    """The ops, by the storages of the inputs with the given indices."""
    users: Users = {}
    for op, indices in pairs:
        for index in indices:
            users.setdefault(root.get(op.inputs[index], op.inputs[index]), {})[op] = None
    return users


@derived
def _changers(graph: Graph) -> Users:
    """The ops that change each changed storage."""
    return _by_storage(changes(graph).items(), roots(graph))


@derived
def _users(graph: Graph) -> Users:
    """All ops that use each changed storage, in creation order."""
    root = roots(graph)
    # Storages that nothing changes cannot be ambiguous, so their users are left out.
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
        position: place of each op in an order that fulfils both: the creation order where it does.
    """

    def __init__(self, graph: Graph) -> None:
        predecessors_of = dependencies(graph)
        order = graph.ops
        self.position = {op: index for index, op in enumerate(order)}
        try:
            self._ancestors = _ancestors(order, predecessors_of, self.position)
        except KeyError:  # the creation order contradicts a constraint
            order = schedule(graph)
            self.position = {op: index for index, op in enumerate(order)}
            self._ancestors = _ancestors(order, predecessors_of, self.position)

    def below(self, op: Op) -> int:
        """The position below which all ops must come before ``op``."""
        return self._ancestors[op][0]

    def before(self, earlier: Op, later: Op) -> bool:
        """Whether ``earlier`` must come before ``later``."""
        (below, more), place = self._ancestors[later], self.position[earlier]
        return place < below or bool((more >> (place - below)) & 1)

    def ordered(self, left: Op, right: Op) -> bool:
        """Whether one of the two ops must come before the other."""
        return self.before(left, right) or self.before(right, left)

    def unordered(self, ops: Iterable[Op], others: Iterable[Op]) -> list[tuple[Op, Op]]:
        """Pairs of different ops, one from ``ops`` and one from ``others``, that are not :meth:`ordered`.

        Each pair is in the order of :attr:`position`.
        """
        place = self.position
        pairs = [
            (op, other_op) for op in ops for other_op in others if op is not other_op and not self.ordered(op, other_op)
        ]
        return [(left, right) if place[left] < place[right] else (right, left) for left, right in pairs]


def call_order(graph: Graph) -> list[tuple[Op, Op]]:
    """Constraints (before, after) that order calls that change a tensor by reference against its other users.

    They follow the order of the program and are given where nothing else orders the two. Upstream does not see such a
    change as an ambiguity (its alias model knows a changed input only where it aliases an output: popart:
    willow/src/op.cpp, growAliasModelMulti) and leaves the order to the scheduler, which may choose the program's order.
    Against an op whose result is the changed tensor the ambiguity stays.
    """
    # Programs without such calls, which are most, end here, and those whose order is settled.
    calls = [(op, unseen) for op in calling(graph) if (unseen := op.unseen_changes())]
    if not calls or in_chain(graph):
        return []
    root = roots(graph)
    callers = _by_storage(calls, root)
    users = _users(graph)
    # Where the caller is the only user of each storage, there is nothing to order it against.
    if all(len(users[owner]) == 1 for owner in callers):
        return []
    unseen_of = dict(calls)
    seen = _by_storage(
        [(op, {*indices}.difference(unseen_of.get(op, ()))) for op, indices in changes(graph).items()], root
    )
    precedence, edges = precedence_of(graph), []
    for owner, changing in callers.items():
        others = [other for other in users[owner] if other not in seen.get(owner, ())]
        if not _in_order({**changing, **dict.fromkeys(others)}, changing.keys(), precedence):
            edges += precedence.unordered(changing, others)
    return edges


def check_ambiguity(graph: Graph) -> None:
    """Raise :class:`AmbiguityError` when an in-place change is not ordered against another use of the same storage.

    A later reader names the *result* of the in-place op when it wants the new value. Data flow or ``in_sequence`` must
    order a user of the old tensor before or after the change. For calls see :func:`call_order`.
    """
    changing = changes(graph)
    if not changing or in_chain(graph):
        return
    root, changers, users = roots(graph), _changers(graph), _users(graph)
    shared = [owner for owner, owner_users in users.items() if len(owner_users) > 1]
    if not shared:
        return
    precedence = precedence_of(graph)
    # One pass shows for most graphs that all is well; pairs are compared only to name the culprits.
    if all(_in_order(users[owner], changers[owner].keys(), precedence) for owner in shared):
        return
    for op, modified in changing.items():
        for index in modified:
            owner = root.get(op.inputs[index], op.inputs[index])
            for user in users[owner]:
                if user is not op and not precedence.ordered(op, user):
                    raise AmbiguityError(
                        f"Inplacing ambiguity detected. {op.where()} changes tensor {owner.id!r} in place and "
                        f"{user.where()} uses it, and nothing says which comes first; "
                        "create both inside `popxl.in_sequence(True)`, or use the result of the in-place op"
                    )


def _in_order(users: Iterable[Op], changers: Collection[Op], precedence: Precedence) -> bool:
    """Whether each of ``changers`` has to come before or after every other op of ``users``."""
    position = precedence.position
    last: list[Op] = []
    since: list[Op] = []
    # What comes after the last changer comes after all that this one follows.
    for op in sorted(users, key=position.__getitem__):
        others = last
        if op in changers:
            others, last, since = [*last, *since], [op], []
        else:
            since.append(op)
        # They are in order, so for ops in sequence a look at the last one is enough.
        in_sequence = not others or position[others[-1]] < precedence.below(op)
        if not in_sequence and not all(precedence.before(other, op) for other in others):
            return False
    return True
