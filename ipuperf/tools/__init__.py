"""Tools over the simulator: sweeps, tuning, levers, validation, tests of programs, data sets."""
