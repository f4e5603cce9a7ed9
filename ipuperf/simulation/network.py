"""Flow-level network: transfers in flight share links, DDR channels and PCIe ports by max-min fairness.

**Rates.** A flow crosses all links of its route at once, with a single rate. The rates of all flows are max-min fair:
the link with the smallest share per flow comes first, its flows get that share, and the remaining flows divide the
remaining bandwidth in the same way (:func:`.sharing.fair_rates`).

**Protocol.** A flow goes through four stages.

1. It is started (:meth:`Network.start`) and pays the latencies of its links. It occupies nothing meanwhile.
2. It enters (:meth:`Network._enter`) and asks for new rates.
3. At the end of each instant in which a flow entered or ended, the network works out the rates of all flows that are
   now in flight, and plans when the first of them ends (:meth:`Network._settle`). Until then the rates are constant.
4. It ends at the next whole cycle after its last byte (:meth:`Network._end_first`). First all ends of the instant are
   recorded, then the listeners are told. The flows that go on ask for new rates.

A plan cannot be withdrawn. When other flows enter before the planned end, a new end is planned, and the old one finds
that it is out of date.

**Arithmetic.** It uses integers and is exact to a unit of 1 / (:data:`SCALE` x clock) byte. A link of B bytes/s moves
B x SCALE units in a cycle of a clock of f Hz; a byte is f x SCALE units. Shares are whole units, rounded down, so a
link never carries more than its bandwidth. SCALE is divisible by 1 to 16, so an equal share between up to 16 flows is
exact, and flows end on the cycle that a calculation by hand gives. There is no floating point, hence no drift and no
dependence on the platform.

**Bundles.** Sends of the same size that begin together and need the same latency are one flow as long as their rates
are equal. Examples are a round of a collective, or what identical replicas send at once. The rates are computed for
each send. Where they come out different, the network splits the flow. The outcome is therefore the same, to the unit,
as if each send were a flow of its own. A flow that stands for several replicas must not be split; this raises
:class:`.errors.Asymmetric`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .errors import Asymmetric
from .event_loop import NETWORK, EventLoop
from .flows import Batch, Done, FlowSplit, NetworkFlow, SendBundle
from .recorder import Flight, TransferTemplate
from .sharing import Shares, Sharing, Sharings
from .templates import FlowTemplates, Send

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .recorder import Label, Recorder

SCALE = 720_720
"""Units in a byte x Hz: the least common multiple of 1 to 16 (see the module's docstring)."""


class Network:
    """All links of a machine and the flows on them.

    Args:
        events: the event loop.
        links: the links. Flows compete for resources: links with the same :attr:`Link.resource` share one bandwidth,
            that of the fastest of them.
        clock_hz: the tile clock.
        recorder: records every finished flow.

    Attributes:
        templates: prepares what is to be sent.
    """

    def __init__(self, events: EventLoop, links: Sequence[Link], clock_hz: int, recorder: Recorder) -> None:
        self._events = events
        self._recorder = recorder
        capacity: dict[str, int] = {}
        for link in links:
            capacity[link.resource] = max(capacity.get(link.resource, 0), link.bandwidth_bytes_per_s * SCALE)
        # A link that is slower than what it shares is a bottleneck of its own besides.
        slower = [link for link in links if link.bandwidth_bytes_per_s * SCALE < capacity[link.resource]]
        capacity |= {link.name: link.bandwidth_bytes_per_s * SCALE for link in slower}
        resources = {name: number for number, name in enumerate(capacity)}
        self._sharings = Sharings(list(capacity.values()))
        self.templates = FlowTemplates(links, resources, clock_hz * SCALE, self._sharings, recorder)
        self._entering_at: dict[int, list[NetworkFlow]] = {}  # started flows by the time at which they enter
        self._entered: list[NetworkFlow] = []  # flows that entered in this instant and have no rates yet
        self._flows: list[NetworkFlow] = []  # flows in flight; the list is replaced, never changed
        self._sharing: Sharing | None = None  # rates of the flows in flight, valid from `_sharing_start` on
        self._sharing_start = 0
        self._ended_sharing: Sharing | None = None  # the sharing whose first flows ended in this instant
        self._settle_planned = False
        self._planned_end = -1  # time at which the first flow ends, -1: not planned

    # -- starting flows ----------------------------------------------------------------------------------------------

    def send(self, sends: Iterable[Send], size: int, label: Label, done: Done) -> None:
        """Move ``size`` bytes over the route of each send; see :meth:`move`."""
        for bundle in self.templates.bundles(sends):
            self.move(bundle, (), size, label, done)

    def move(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label, done: Done) -> None:
        """Move ``size`` bytes for each send of ``bundle``.

        Args:
            bundle: the sends.
            owner: what is put before the owner of each send.
            size: bytes of each send.
            label: what the trace says about the transfer.
            done: is called with the sends whose last byte has arrived, once for each part if the flow is split.
        """
        self.start([NetworkFlow(self.templates.of(bundle, owner, size, label), done)])

    def start(self, flows: Sequence[NetworkFlow], delay: int = 0) -> None:
        """Begin flows of the same latency ``delay`` cycles from now.

        They enter after the latencies of their links. A flow without bytes is done when these are over, and leaves no
        transfer in the trace.
        """
        wait = delay + flows[0].latency
        entry_time = self._events.now + wait
        for flow in flows:
            flow.start = entry_time
        if not wait:
            self._enter(flows)
        elif entry_time in self._entering_at:
            self._entering_at[entry_time] += flows
        else:
            self._entering_at[entry_time] = [*flows]
            self._events.after(wait, self._enter_due)

    def record(
        self,
        moved: Sequence[tuple[int, int, tuple[Flight, ...]]],
        owner: tuple[int, ...],
        size: int,
        label: Label,
        repeats: int,
        period: int,
    ) -> None:
        """Record sends that are repeated without being simulated.

        Args:
            moved: begin, end and sends of what was simulated; the sends of an entry began and ended together.
            owner: what is put before the owner of each send.
            size: bytes of each send.
            label: what the trace says about them.
            repeats: how many more times all of this happens.
            period: cycles from each time to the next.
        """
        batches = [
            (self.templates.recorded(TransferTemplate(owner, flights, size, label)), start, end - start)
            for start, end, flights in moved
        ]
        for shift in range(period, (repeats + 1) * period, period):
            for batch, start, dur in batches:
                self._recorder.transfers.add((batch, start + shift, dur))

    # -- what is in flight -------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no flow is in flight and none has entered in this instant."""
        return not self._flows and not self._entered

    def state(self, time: int) -> tuple[tuple[int, ...], ...]:
        """Everything on which the future depends, relative to ``time``; valid at the end of an instant."""
        entering = [
            (0, flow.template.number, entry_time - time, 0)
            for entry_time, flows in self._entering_at.items()
            for flow in flows
        ]
        flying: list[tuple[int, ...]] = []
        if self._sharing is not None:
            remaining = self._sharing.left_after(time - self._sharing_start)
            flying = [
                (1, flow.template.number, flow.start - time, units)
                for flow, units in zip(self._flows, remaining, strict=True)
            ]
        return tuple(sorted(entering + flying))

    def _enter_due(self) -> None:
        self._enter(self._entering_at.pop(self._events.now))

    def _enter(self, flows: Sequence[NetworkFlow]) -> None:
        moving = [flow for flow in flows if flow.units]
        self._entered += moving
        if self._entered:
            self._plan_settling()
        # A flow without bytes needs no bandwidth and is done at once.
        if len(moving) < len(flows):
            for flow in flows:
                if not flow.units:
                    flow.done(flow.template.sent.flights)

    def _plan_settling(self) -> None:
        """Have the rates worked out once, when all that happens in this instant has happened."""
        if not self._settle_planned:
            self._settle_planned = True
            self._events.after(0, self._settle, NETWORK)

    def _settle(self) -> None:
        """Share the links between all flows that are now in flight, and plan the end of the first."""
        self._settle_planned = False
        now = self._events.now
        self._sharing, self._sharing_start = self._new_sharing(now), now
        self._ended_sharing = None
        first_end = now + self._sharing.lasts
        if first_end != self._planned_end:
            self._planned_end = first_end
            self._events.after(first_end - now, self._end_first)

    def _new_sharing(self, now: int) -> Sharing:
        """The sharing of the flows in flight and of those that entered in this instant."""
        entered, ended = self._entered, self._ended_sharing
        if ended is not None and not entered:
            # The usual case, and the cheap one: flows only ended, so what follows may be known already.
            sharing = self._sharings.after(ended)
            return self._split_flows(*self._remaining(now)) if sharing is None else sharing
        kinds, units = self._remaining(now)
        kinds += tuple([flow.kind for flow in entered])
        units += tuple([flow.units for flow in entered])
        self._flows, self._entered = self._flows + entered, []
        sharing = self._sharings.of(kinds, units)
        return self._split_flows(kinds, units) if sharing is None else sharing

    def _remaining(self, now: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Kinds of the flows that entered earlier, and the units that each of their sends has still to move."""
        ended = self._ended_sharing
        if ended is not None:
            return ended.remaining()
        if self._sharing is not None:
            return self._sharing.kinds, self._sharing.left_after(now - self._sharing_start)
        return (), ()

    # -- splitting and ending flows ----------------------------------------------------------------------------------

    def _split_flows(self, kinds: tuple[int, ...], units: tuple[int, ...]) -> Sharing:
        """Split the flows so that all sends of each flow have the same rate.

        Args:
            kinds: of the flows.
            units: what each send of a flow has still to move.
        """
        parts = [
            (part, flow_units)
            for flow, flow_units, shares in zip(self._flows, units, self._sharings.shares(kinds), strict=True)
            for part in self._parts(flow, shares)
        ]
        self._flows = [flow for flow, _ in parts]
        part_kinds = tuple([flow.kind for flow in self._flows])
        sharing = self._sharings.of(part_kinds, tuple([flow_units for _, flow_units in parts]))
        # Rates belong to sends, and which sends form a flow does not change them.
        assert sharing is not None
        return sharing

    def _parts(self, flow: NetworkFlow, shares: Shares) -> list[NetworkFlow]:
        """The parts of a flow, one for each rate of its sends.

        Raises:
            Asymmetric: the rates differ, but the flow stands for replicas that do the same.
        """
        if len(shares) == 1:
            return [flow]
        replicas = flow.template.bundle.replicas
        if replicas:
            replica_sets = [[replicas[place] for place in places] for _, places in shares]
            raise Asymmetric(
                f"the {flow.template.sent.label.kind} transfers of the replicas are not equally fast", replica_sets
            )
        return [NetworkFlow(self.templates.part(flow.template, places), flow.done, flow.start) for _, places in shares]

    def _end_first(self) -> None:
        """End the flows that end first, unless the rates have changed since this was planned."""
        now, sharing = self._events.now, self._sharing
        # Events of the loop cannot be withdrawn: an end that is no longer planned is passed over.
        if now != self._planned_end or sharing is None:
            return
        # The rates end with the first flow; `_settle` works out those of the others.
        self._planned_end, self._sharing = -1, None
        # The same flow objects start again and again, so the split of their list is often known.
        split = sharing.splits.get(self._flows[0])
        if split is None or split.flows != self._flows:
            split = sharing.splits.put(self._flows[0], self._new_split(sharing))
        self._flows = split.others
        if self._flows:
            self._ended_sharing = sharing
            self._plan_settling()
        add = self._recorder.transfers.add
        for batch in split.ended:
            start = batch.listener_flow.start
            add((batch.number, start, now - start))
        # All ends are recorded before anybody is told, because who is told may start these flows again.
        for batch in split.ended:
            batch.listener_flow.done(batch.flights)

    def _new_split(self, sharing: Sharing) -> FlowSplit:
        """Which flows end. Flows that began together and tell the same listener are one batch."""
        flows = self._flows
        batches: dict[tuple[Done, int], list[NetworkFlow]] = {}
        for place in sharing.ended:
            batches.setdefault((flows[place].done, flows[place].start), []).append(flows[place])
        ended = [Batch(batch[0], *self.templates.join(batch)) for batch in batches.values()]
        return FlowSplit(flows, ended, [flows[place] for place in sharing.others])
