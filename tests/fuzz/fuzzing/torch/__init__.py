"""Two families for PyTorch: modules that are trained, and forwards of random statements."""
