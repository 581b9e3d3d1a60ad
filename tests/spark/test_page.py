"""What docs/howto/spark.md shows first works word for word, and so does its example with rows."""

import sys

import pytest
from pages import blocks, first_job, type_in

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.timeout(900)]
SESSION = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = [([n % 3 / 2, n % 5 / 4], n % 3 - n % 5 / 4) for n in range(2000)]
frame = session.createDataFrame(rows, "x array<float>, y float")
"""
PREDICT = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, use_bias=False)])
model.layers[0].set_weights([weights])
model.save("model.keras")
"""
CHECK = """
assert abs(weights - [[2.0], [-1.0]]).max() < 0.05, weights
worst = max(abs(row.prediction - row.y) for row in predictions.collect())
assert worst < 0.2, worst
print("as expected")
"""


def test_the_first_job_prints_what_the_page_says(tmp_path):
    typed, shown = first_job("spark.md")
    done = type_in(tmp_path, "bash", "-ec", typed)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == shown


def test_the_row_example_learns_and_predicts(tmp_path):
    (train,) = [text for kind, text in blocks("spark.md") if kind == "python" and "spark.dataset(" in text]
    (predict,) = [text for kind, text in blocks("spark.md") if kind == "python" and "spark.predict(" in text]
    predict = "\n".join(line for line in predict.splitlines() if "hdfs:" not in line)
    script = tmp_path / "example.py"
    script.write_text("\n".join([SESSION, train, PREDICT, predict, CHECK]))
    done = type_in(tmp_path, sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    assert "as expected" in done.stdout
