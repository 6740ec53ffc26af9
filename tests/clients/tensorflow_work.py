"""The program run by test_tensorflow.py: python tensorflow_work.py NAME BUCKET LARGE_BYTES SMALL_OBJECTS."""

import os
import sys

import numpy
import tensorflow as tf
import tensorflow_io  # noqa: F401  (registers s3://)

from content import content, small_objects

files = tf.io.gfile


def write(path, body):
    with files.GFile(path, "wb") as file:
        file.write(body)


def read(path):
    with files.GFile(path, "rb") as file:
        return file.read()


def large_file(root, large_bytes, _):
    body = content(large_bytes, "tensorflow")
    write(f"{root}/large", body)
    assert files.stat(f"{root}/large").length == large_bytes
    assert read(f"{root}/large") == body
    with files.GFile(f"{root}/large", "rb") as file:
        file.seek(large_bytes - 99)
        assert file.read(99) == body[-99:]


def small_files(root, _, count):
    objects = dict(small_objects(count))
    for key, body in objects.items():
        write(f"{root}/{key}", body)
    assert {key: read(f"{root}/{key}") for key in objects} == objects
    assert sorted(name.rstrip("/") for name in files.listdir(f"{root}/many")) == [str(n) for n in range(7)]
    assert len(files.glob(f"{root}/many/0/*.bin")) == len(
        [key for key in objects if key.startswith("many/0/")]
    )
    first = list(objects)[1]  # The one before is empty, which `rename` of this plug-in refuses.
    files.rename(f"{root}/{first}", f"{root}/end/moved")
    files.copy(f"{root}/end/moved", f"{root}/end/copied")
    assert read(f"{root}/end/copied") == objects[first] and not files.exists(f"{root}/{first}")
    for key in objects.keys() - {first}:
        files.remove(f"{root}/{key}")
    assert sorted(files.listdir(f"{root}/end")) == ["copied", "moved"]


def records(root, _, count):
    values = numpy.random.default_rng(0).normal(size=(count * 5, 4)).astype("float32")
    for shard in range(4):
        with tf.io.TFRecordWriter(f"{root}/shard-{shard}.tfrecord") as writer:
            for value in values[shard::4]:
                writer.write(value.tobytes())
    names = tf.data.Dataset.list_files(f"{root}/shard-*.tfrecord", shuffle=False)
    data = tf.data.TFRecordDataset(names).map(lambda record: tf.io.decode_raw(record, tf.float32))
    back = numpy.stack(list(data.as_numpy_iterator()))
    assert sorted(map(bytes, back)) == sorted(map(bytes, values))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    pairs = data.map(lambda value: (tf.reshape(value, [4]), tf.reduce_sum(value, keepdims=True))).batch(10)
    history = model.fit(pairs, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]


def checkpoint(root, _, __):
    saved = tf.train.Checkpoint(a=tf.Variable(tf.random.normal([300, 300])), step=tf.Variable(7))
    path = saved.write(f"{root}/checkpoint/step-7")
    loaded = tf.train.Checkpoint(a=tf.Variable(tf.zeros([300, 300])), step=tf.Variable(0))
    loaded.read(path).assert_consumed()
    assert numpy.array_equal(loaded.a.numpy(), saved.a.numpy()) and int(loaded.step) == 7


if __name__ == "__main__":
    _, name, bucket, large_bytes, count = sys.argv
    globals()[name](f"s3://{bucket}", int(large_bytes), int(count))
    # The plug-in's threads outlive its statics, so that a normal exit may abort after the work was done.
    os._exit(0)
