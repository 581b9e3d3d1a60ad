"""Keras's own trainer over several processes: ``keras.distribution`` on TensorFlow, with the numbers of one process."""
