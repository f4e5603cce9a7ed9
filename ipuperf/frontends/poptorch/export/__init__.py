"""From a PyTorch module to graphs of aten ops, one for each stage."""
