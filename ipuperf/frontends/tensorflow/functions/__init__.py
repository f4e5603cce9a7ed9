"""Functions of the IPU's interface that write ops of their own into TensorFlow's graph."""
