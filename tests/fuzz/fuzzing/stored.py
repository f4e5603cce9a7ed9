"""Programs that are kept as a line of JSON."""

import json
from dataclasses import asdict
from typing import Any, TypeVar

StoredT = TypeVar("StoredT", bound="Stored")


class Stored:
    """Base of the dataclasses of random programs."""

    def to_json(self) -> str:
        """One line of JSON."""
        fields: Any = self
        return json.dumps(asdict(fields))

    @classmethod
    def from_json(cls: type[StoredT], text: str) -> StoredT:
        """The program that :meth:`to_json` wrote."""
        return cls(**json.loads(text))
