"""From PyTorch's aten ops to ops of the IR, by family."""
