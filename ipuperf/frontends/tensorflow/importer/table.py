"""Tables from TensorFlow's op types to functions that make ops of the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ipuperf.frontends.catalogue import taking_tensors

#: ``handler(node, *inputs)``: the value of the op's output, a list for several, None for none.
Handler = Callable[..., Any]
HandlerT = TypeVar("HandlerT", bound=Handler)


class Family(dict[str, Handler]):
    """The handlers of a family of ops by their types.

    Attributes:
        title: its heading in the generated table.
        effects: types of ops that are imported for what they do, also where nothing uses their outputs.
        arranged: types of ops that take and give :class:`.arranged.Arranged` values.
        unfolded: types of ops whose value does not follow from their operands, besides those with effects.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.effects: set[str] = set()
        self.unfolded: set[str] = set()
        self.arranged: set[str] = set()

    def op(
        self, *types: str, effect: bool = False, folds: bool = True, arranged: bool = False
    ) -> Callable[[HandlerT], HandlerT]:
        """Declare what imports the ops of these types. Operands that it takes as a ``Tensor`` are made tensors, the
        others come as they are."""

        def declare(handler: HandlerT) -> HandlerT:
            for name in types:
                self[name] = taking_tensors(handler)
                if effect:
                    self.effects.add(name)
                if arranged:
                    self.arranged.add(name)
                if not folds:
                    self.unfolded.add(name)
            return handler

        return declare

    def formula(self, types: str, meaning: str, function: Callable[..., Any]) -> None:
        """Declare that ops are ``function`` of their operands, all of them tensors.

        Args:
            types: separated by spaces.
            meaning: what the generated table says.
        """

        def handler(node: Any, *values: Any) -> Any:
            return function(*node.tensors(values))

        handler.__doc__ = meaning
        self.op(*types.split())(handler)


class Operations:
    """The handlers of all families."""

    def __init__(self, families: list[Family]) -> None:
        self.families = families
        self._handlers = {name: handler for family in families for name, handler in family.items()}
        self._effects = {name for family in families for name in family.effects}
        self._arranged = {name for family in families for name in family.arranged}
        self._unfolded = self._effects.union(*(family.unfolded for family in families))

    def __getitem__(self, op_type: str) -> Handler | None:
        return self._handlers.get(op_type)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def has_effect(self, op_type: str) -> bool:
        """Whether an op of this type is imported for what it does."""
        return op_type in self._effects

    def takes_arranged(self, op_type: str) -> bool:
        """Whether an op of this type takes tensors in another order of axes than TensorFlow's."""
        return op_type in self._arranged

    def folds(self, op_type: str) -> bool:
        """Whether the host may compute an op of this type where its operands are known."""
        return op_type not in self._unfolded
