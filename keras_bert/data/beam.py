"""Makes examples in an Apache Beam pipeline, on this machine or with Flink, Spark or Dataflow."""

import collections
import os
import re

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io import WriteToText
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from keras_bert.data.tfrecord import frame
from keras_bert.errors import InputError


def write_shards(maker, read, paths, folder, shards, arguments):
    """Runs `workers.write_shards` as a pipeline, which writes the same examples in another order.

    All workers need access to the paths.

    Args:
        maker, read, paths, folder, shards: see `workers.write_shards`.
        arguments: list of the pipeline's flags, e.g. `--runner=FlinkRunner`.

    Returns:
        `Counter`, see `workers.write_shards`.
    """
    try:
        pipeline = beam.Pipeline(options=PipelineOptions(arguments))
    except ValueError as error:
        raise InputError(f"beam_args: {error}") from None
    _ = (pipeline
         | "Files" >> beam.Create([(os.path.abspath(path), number) for number, path in enumerate(paths)])
         | "Blocks" >> beam.FlatMapTuple(read)
         | "Share out" >> beam.Reshuffle()
         | "Records" >> beam.FlatMap(_records, maker)
         # Writes the bytes unchanged. WriteToTFRecord needs another package for checksums, which the records have.
         | "Shards" >> WriteToText(os.path.join(folder, "pretraining"), ".tfrecord", append_trailing_newlines=False,
                                   num_shards=shards, coder=BytesCoder()))
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except (InputError, RuntimeError) as error:  # from another process it is text in a RuntimeError
        text = str(error) if isinstance(error, InputError) else str(error).partition("InputError: ")[2]
        if text:
            raise InputError(re.split(r"\n| \[while running", text)[0]) from None
        raise
    counters = result.metrics().query()[result.metrics().COUNTERS]
    return collections.Counter({counter.key.metric.name: counter.result for counter in counters
                                if counter.key.metric.namespace == __name__})


def _records(block, maker):
    Metrics.counter(__name__, "documents").inc(len(block.documents))
    for examples, counts in maker.examples(block):
        for name, count in counts.items():
            Metrics.counter(__name__, name).inc(count)
        yield from map(bytes, frame(examples))
