"""DataFrames: their rows stream to the ranks, and a saved model predicts for them."""

import threading

import pytest
import spark_jobs
from launching import until

from tfcollective import spark
from tfcollective._base.errors import ConfigError, LaunchError, UnsupportedError, WorkerFailedError

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.timeout(900)]
START_S = 300.0
ROWS = 101


@pytest.fixture(scope="module")
def session(make_context):
    from pyspark.sql import SparkSession

    return SparkSession(make_context(**{"spark.cores.max": "2", "spark.sql.shuffle.partitions": "2"}))


@pytest.fixture(scope="module")
def frame(session):
    rows = [(number, f"row {number}", [float(number), 1.0], number / 2) for number in range(ROWS)]
    return session.createDataFrame(rows, "number long, text string, vector array<double>, half double").repartition(3)


def test_ranks_together_read_every_row_once(frame):
    found = spark.run(spark_jobs.read_rows, (8, "half"), num_proc=2, start_timeout=START_S, data=spark.feed(frame))
    rows = sorted(row for one in found for row in one["seen"])
    assert rows == [(number, f"row {number}", [float(number), 1.0], number / 2) for number in range(ROWS)]
    counts = [len(one["seen"]) for one in found]
    assert abs(counts[0] - counts[1]) <= 3
    for one in found:
        assert set(one["sizes"][:-1]) == {8}
        assert "come several times" in one["again"]
    assert len({one["last"] for one in found}) == 1


def test_rows_repeat_and_may_stay_unread(frame, session):
    source = spark.feed(frame, columns=["number", "text", "vector", "half"], epochs=2)
    found = spark.run(spark_jobs.read_rows, (50, "half"), num_proc=1, start_timeout=START_S, data=source)
    assert sorted(row[0] for row in found[0]["seen"]) == sorted(2 * list(range(ROWS)))
    many = session.range(2_000_000)
    assert spark.run(spark_jobs.stop_reading, num_proc=2, start_timeout=START_S, data=spark.feed(many)) == [10, 10]


def test_rows_lost_by_spark_end_the_job(session, cluster, tmp_path):
    """Their shuffle is gone: Spark gives the task no further batch, and Arrow takes that for the end."""
    from pyspark.sql import functions

    def lose():
        until((tmp_path / "reads").exists, START_S)
        for path in (cluster.folder / "local").rglob("shuffle_*"):
            path.unlink()
        (tmp_path / "go").touch()

    wide = session.range(0, 400_000, 1, 8).withColumn("text", functions.repeat(functions.lit("x"), 200))
    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    with pytest.raises((LaunchError, WorkerFailedError)) as raised:
        spark.run(spark_jobs.read_late, (str(tmp_path),), num_proc=1, start_timeout=START_S, data=spark.feed(wide))
    thread.join(START_S)
    assert (tmp_path / "go").exists(), raised.value


def test_the_event_log_holds_no_key(frame, session):
    (report,) = spark.run(spark_jobs.report, num_proc=1, start_timeout=START_S, data=spark.feed(frame))
    (log,) = session.sparkContext.event_log.glob("app-*")
    text = log.read_text(errors="replace")
    assert "mapInArrow" in text or "MapInArrow" in text
    assert report["key"] not in text


def test_unreadable_sources_are_named_before_starting(frame, session):
    from pyspark.sql import functions

    for refused, what in (
        (lambda: spark.feed([1, 2]), "expected a DataFrame"),
        (lambda: spark.feed(frame, columns="size"), "size"),
        (lambda: spark.feed(frame, epochs=0), "epochs"),
        (lambda: spark.feed(frame.withColumn("when", functions.current_timestamp())), "column 'when'"),
        (lambda: spark.predict(frame, "/nowhere/model.keras", "vector"), "is not a file"),
        (lambda: spark.predict(frame, __file__, "size"), "size"),
        (lambda: spark.predict(frame, __file__, "vector", output="half"), "half"),
    ):
        with pytest.raises(ConfigError, match=what):
            refused()
    with pytest.raises(UnsupportedError, match="reads its own data"):
        spark.run_elastic(spark_jobs.report, num_proc=1, data=spark.feed(frame))


def test_a_saved_model_predicts_for_each_row(frame, tmp_path):
    import numpy as np
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.layers[0].set_weights([np.array([[2.0], [0.0]]), np.array([0.5])])
    path = tmp_path / "model.keras"
    model.save(path)
    rows = spark.predict(frame, path, "vector", output_type="float", batch_size=16).collect()
    assert sorted((row.number, row.prediction) for row in rows) == [(n, 2.0 * n + 0.5) for n in range(ROWS)]
    several = spark.predict(frame, path, ["number", "half"], output="found").collect()
    assert sorted((row.number, row.found) for row in several) == [(n, [2.0 * n + 0.5]) for n in range(ROWS)]
