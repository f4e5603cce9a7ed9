"""Ops that move data: between tiles, IPUs, replicas, Streaming Memory and the host."""
