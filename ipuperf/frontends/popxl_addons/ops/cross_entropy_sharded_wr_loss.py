"""An upstream module that cannot be here; importing it says why."""

from ..surface import refuse

refuse(__name__)
