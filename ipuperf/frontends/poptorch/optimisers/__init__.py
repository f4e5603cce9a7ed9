"""PopTorch's optimisers: PyTorch's classes, their state on the IPUs, and their update rules."""
