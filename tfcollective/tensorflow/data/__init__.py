"""Input pipelines on processes of their own, over TensorFlow's ``tf.data`` service: Horovod's ``tensorflow.data``."""
