"""Models that run on simulated IPUs: compilation, calls, weights, files, times."""
