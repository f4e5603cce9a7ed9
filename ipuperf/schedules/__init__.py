"""Room ``schedules``: see docs/design.md."""
