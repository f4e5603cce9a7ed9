"""Programs that a session or a strategy runs: their graphs, queues, loops and devices."""
