"""Makes examples in an Apache Beam pipeline, on this machine or with Flink, Spark or Dataflow."""

import collections
import os
from collections.abc import Callable, Iterator, Sequence

import apache_beam as beam

from keras_bert.arguments import Path
from keras_bert.integrations.pipelines import new_pipeline, run_pipeline
from keras_bert.pretraining.corpus import Block, MakeExamples, Section
from keras_bert.pretraining.tfrecord import frame


class Pipelines:
    """Makes pretraining examples like `examples.Processes`, in another order. All workers need access to the input and
    to the output folder. The arguments are flags, e.g. `--runner=FlinkRunner`."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments

    def tokenize(self, write_part: Callable[[Block], int], read: Callable[[Path, int], Iterator[Block]],
                 paths: Sequence[Path]) -> collections.Counter[str]:
        pipeline = new_pipeline(self._arguments)
        _ = (pipeline
             | "Files" >> beam.Create([(os.path.abspath(path), number) for number, path in enumerate(paths)])
             | "Blocks" >> beam.FlatMapTuple(read)
             | "Share out" >> beam.Reshuffle()
             | "Tokenize" >> beam.Map(_tokenize, write_part))
        return run_pipeline(pipeline, __name__)

    def write_shards(self, sections: Sequence[Section], make: MakeExamples, folder: str,
                     shards: int) -> collections.Counter[str]:
        pipeline = new_pipeline(self._arguments)
        _ = (pipeline
             | "Sections" >> beam.Create(sections)
             | "Share out" >> beam.Reshuffle()
             | "Records" >> beam.FlatMap(_records, make)
             # Writes the bytes unchanged. WriteToTFRecord needs another package for checksums, which the records have.
             | "Shards" >> beam.io.WriteToText(os.path.join(folder, "pretraining"), ".tfrecord", num_shards=shards,
                                               append_trailing_newlines=False, coder=beam.coders.BytesCoder()))
        return run_pipeline(pipeline, __name__)


def _tokenize(block: Block, write_part: Callable[[Block], int]) -> None:
    beam.metrics.Metrics.counter(__name__, "documents").inc(write_part(block))


def _records(section: Section, make: MakeExamples) -> Iterator[bytes]:
    for examples, counts in make(section):
        for name, count in counts.items():
            beam.metrics.Metrics.counter(__name__, name).inc(count)
        yield from map(bytes, frame(examples))
