"""Calls and loops of subgraphs, by value and by reference; values sent to the host for comparison."""

from typing import Any

import ipuperf.popxl as popxl
from ipuperf.popxl import ops

from ..program import Body, Head, Instruction
from ..scope import FLOATS, Root, Scope, Spec, Traits
from ..storage import Shadow
from .base import Kind

DEEPEST = 3


class Call(Kind):
    """A call, or with ``count`` a loop, of a new function or one that is there already."""

    weight = 4

    def draw(self, scope: Scope) -> bool:
        if scope.depth >= DEEPEST:
            return False
        count = scope.random.choice([None, None, 0, 1, 2, 3, 5])
        number, operands = self._again(scope, count) if scope.random.random() < 0.35 else (-1, None)
        if operands is None:
            number, operands = self._new(scope, count)
        if operands is None:
            return False
        body = scope.shared.functions[number]
        if not _distinct(operands, body):
            return False
        for head, operand in zip(body.heads, operands):
            operand.root.exact = operand.root.exact and not head.by_ref
        kinds = scope.shared.traits[number].kinds
        made = [scope.add(*kinds[o], root=Root(False)) for o in body.outputs]
        scope.emit("call", operands, made, function=number, count=count)
        return True

    def _again(self, scope: Scope, count: int | None) -> tuple[int, list[Spec] | None]:
        """A function that fits, with operands."""
        shared = scope.shared
        numbers = list(range(len(shared.functions)))
        scope.random.shuffle(numbers)
        for number in numbers:
            body, traits = shared.functions[number], shared.traits[number]
            if body.ipu == scope.ipu and traits.depth > scope.depth and (count is None or _carries(body, traits)):
                operands = self._operands(scope, body)
                if operands is not None:
                    return number, operands
        return -1, None

    def _operands(self, scope: Scope, body: Body) -> list[Spec] | None:
        found: list[Spec] = []
        for head in body.heads:
            x = scope.pick(
                lambda s, h=head: (
                    list(s.shape) == h.shape and s.dtype == h.dtype and not s.meta and (s.mutable or not h.by_ref)
                )
            )
            if x is None:
                return None
            found.append(x)
        return found

    def _new(self, scope: Scope, count: int | None) -> tuple[int, list[Spec] | None]:
        """A new function around random operands; the last may be by reference."""
        from ..generator import draw_body

        r, shared = scope.random, scope.shared
        operands = [scope.pick(lambda s: s.elements > 0 and not s.meta) for _ in range(r.randint(1, 3))]
        if None in operands:
            return -1, None
        found = [o for o in operands if o is not None]
        inner = Scope(shared, scope.depth + 1, scope.ipu)
        heads = []
        for position, operand in enumerate(found):
            by_ref = position == len(found) - 1 and operand.mutable and r.random() < 0.5
            root = Root(operand.dtype not in FLOATS)
            mutable = by_ref or r.random() < 0.4
            number = inner.add(operand.shape, operand.dtype, root=root, changeable=mutable, strided=by_ref)
            heads.append(Head(number, list(operand.shape), operand.dtype, "input", by_ref))
        draw_body(inner, r.randint(1, 5))
        body = Body(heads, inner.instructions, self._outputs(inner, heads, count), scope.ipu)
        shared.functions.append(body)
        shared.traits.append(Traits({s.id: (list(s.shape), s.dtype) for s in inner.specs.values()}, inner.depth))
        return len(shared.functions) - 1, found

    def _outputs(self, inner: Scope, heads: list[Head], count: int | None) -> list[int]:
        """Random results; of a loop such as its first inputs can carry."""
        r = inner.random
        made = [s for s in inner.specs.values() if all(s.id != h.id for h in heads)]
        if count is None:
            return [s.id for s in made if r.random() < 0.5][:3]
        outputs = []
        for head in heads:
            fitting = [s.id for s in made if list(s.shape) == head.shape and s.dtype == head.dtype]
            if head.by_ref or not fitting:
                break
            outputs.append(r.choice(fitting))
        return outputs

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        graph, body = builder.graph(ins.attributes["function"])
        count = ins.attributes["count"]
        changed = [o for o, h in zip(operands, body.heads) if h.by_ref]
        if not changed and count is None:
            return list(ops.call(graph, *operands) or ())
        site = ops.call_with_info(graph, *operands) if count is None else ops.repeat_with_info(graph, count, *operands)
        for operand in changed:
            site.set_parent_input_modified(operand)
        return list(site.outputs)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        body, count = world.program.functions[ins.attributes["function"]], ins.attributes["count"]
        results = [o.copy() for o in operands[: len(body.outputs)]] if count is not None else []
        for _ in range(1 if count is None else count):
            carried = results + operands[len(results) :]
            values = {h.id: c if h.by_ref else c.copy() for h, c in zip(body.heads, carried)}
            world.run(body.instructions, values)
            results = [values[o].copy() for o in body.outputs]
        return results


def _distinct(operands: list[Spec], body: Body) -> bool:
    """Whether a tensor that is given by reference is given once."""
    numbers = [o.id for o in operands]
    return all(not h.by_ref or numbers.count(o.id) == 1 for o, h in zip(operands, body.heads))


def _carries(body: Body, traits: Traits) -> bool:
    """Whether a loop can carry the outputs: they are the first inputs of the next trip."""
    heads = body.heads[: len(body.outputs)]
    same = all(traits.kinds[o] == (h.shape, h.dtype) and not h.by_ref for o, h in zip(body.outputs, heads))
    return len(body.outputs) <= len(body.heads) and same


class Store(Kind):
    """The value at this moment, sent to the host and compared (in the main graph)."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: s.elements > 0)
        if x is None or scope.depth:
            return False
        scope.emit("store", [x], io=bool(scope.shared.io_tiles) and scope.random.random() < 0.5)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        stream = popxl.d2h_stream(operands[0].shape, operands[0].dtype, f"out{len(builder.stored)}")
        builder.stored.append(stream)
        if not ins.attributes["io"]:
            ops.host_store(stream, operands[0])
            return None
        copied = ops.io_tile_copy(operands[0])
        with popxl.io_tiles():
            ops.host_store(stream, copied)
        return None

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        world.stored.append((ins.inputs[0], operands[0].dtype, operands[0].read()))
