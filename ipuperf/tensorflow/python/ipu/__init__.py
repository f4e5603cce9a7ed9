"""``tensorflow.python.ipu``: what TensorFlow's port for the IPU adds to TensorFlow."""
