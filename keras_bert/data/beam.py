"""Makes examples in an Apache Beam pipeline, on this machine or with Flink, Spark or Dataflow."""

import collections
import logging
import os
import re

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io import WriteToText
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from keras_bert.data.tfrecord import frame
from keras_bert.errors import InputError

# The message of an InputError says everything: its traceback is not logged.
logging.getLogger("apache_beam.runners.common").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], InputError)))


class Pipelines:
    """Makes pretraining examples as `workers.Processes` does, in pipelines that write them in another order.

    All workers need access to the input and to the output folder.

    Args:
        arguments: the flags of a pipeline, e.g. `--runner=FlinkRunner`.
    """

    def __init__(self, arguments: list[str]):
        self._arguments = arguments

    def tokenize(self, write_part, read, paths):
        pipeline = new_pipeline(self._arguments)
        _ = (pipeline
             | "Files" >> beam.Create([(os.path.abspath(path), number) for number, path in enumerate(paths)])
             | "Blocks" >> beam.FlatMapTuple(read)
             | "Share out" >> beam.Reshuffle()
             | "Tokenize" >> beam.Map(_tokenize, write_part))
        return run_pipeline(pipeline, __name__)

    def write_shards(self, maker, folder, shards):
        pipeline = new_pipeline(self._arguments)
        _ = (pipeline
             | "Sections" >> beam.Create(list(maker.corpus.sections()))
             | "Share out" >> beam.Reshuffle()
             | "Records" >> beam.FlatMap(_records, maker)
             # Writes the bytes unchanged. WriteToTFRecord needs another package for checksums, which the records have.
             | "Shards" >> WriteToText(os.path.join(folder, "pretraining"), ".tfrecord",
                                       append_trailing_newlines=False, num_shards=shards, coder=BytesCoder()))
        return run_pipeline(pipeline, __name__)


def new_pipeline(arguments):
    """Returns a new pipeline.

    Args:
        arguments: list of the pipeline's flags.

    Raises:
        InputError: a flag is invalid. The flags of other runners than `DirectRunner` may be unknown to this process.
    """
    options = PipelineOptions(arguments)
    given = options.get_all_options(retain_unknown_options=True)
    unknown = given.keys() - PipelineOptions([]).get_all_options().keys()
    if unknown and options.view_as(StandardOptions).runner in (None, "DirectRunner"):
        raise InputError(f"beam_args: DirectRunner has no flag --{min(unknown)}")
    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise InputError(f"beam_args: {error}") from None


def run_pipeline(pipeline, namespace):
    """Runs a pipeline; returns a `Counter` of its metrics in a namespace. An InputError of a worker stays one."""
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except (InputError, RuntimeError) as error:  # from another process it is text in a RuntimeError
        text = str(error) if isinstance(error, InputError) else re.split("InputError: |MissingColumn: ", str(error))[-1]
        if isinstance(error, InputError) or text != str(error):
            raise InputError(re.split(r"\n| \[while running", text)[0]) from None
        raise
    counters = result.metrics().query()[result.metrics().COUNTERS]
    return collections.Counter({counter.key.metric.name: counter.result for counter in counters
                                if counter.key.metric.namespace == namespace})


def _tokenize(block, write_part):
    Metrics.counter(__name__, "documents").inc(write_part(block))


def _records(section, maker):
    for examples, counts in maker.examples(section):
        for name, count in counts.items():
            Metrics.counter(__name__, name).inc(count)
        yield from map(bytes, frame(examples))
