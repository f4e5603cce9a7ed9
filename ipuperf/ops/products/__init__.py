"""Matrix products and convolutions, also of narrow types, and triangular systems."""
