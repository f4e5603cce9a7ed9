"""How each type of TensorFlow's ops is imported, by family."""
