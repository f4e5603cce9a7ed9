"""Random programs for all front ends, each against an independent oracle. See ``docs/random-programs.md``."""
