"""Apache Beam pipelines: their flags, their errors and their metrics."""

import collections
import logging
import re

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from keras_bert.errors import InputError, Option

# The message of an InputError says everything: its traceback is not logged.
logging.getLogger("apache_beam.runners.common").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], InputError)))


def new_pipeline(arguments: list[str]) -> beam.Pipeline:
    """Returns a new pipeline with these flags. Raises an `InputError` if one is invalid; flags of other runners than
    `DirectRunner` may be unknown to this process."""
    options = PipelineOptions(arguments)
    given = options.get_all_options(retain_unknown_options=True)
    unknown = given.keys() - PipelineOptions([]).get_all_options().keys()
    if unknown and options.view_as(StandardOptions).runner in (None, "DirectRunner"):
        raise InputError(Option("beam_args"), f": DirectRunner has no flag --{min(unknown)}")
    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise InputError(Option("beam_args"), f": {error}") from None


def run_pipeline(pipeline: beam.Pipeline, namespace: str) -> collections.Counter[str]:
    """Runs a pipeline; returns its metrics in a namespace. An InputError of a worker stays one."""
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except (InputError, RuntimeError) as error:  # from another process it is text in a RuntimeError
        kinds: list[type[InputError]] = [InputError, *InputError.__subclasses__()]
        names = "|".join(f"{kind.__name__}: " for kind in kinds)
        text = str(error) if isinstance(error, InputError) else re.split(names, str(error))[-1]
        if isinstance(error, InputError) or text != str(error):
            # The text alone remains of its parts: the arguments are found by their form.
            parts = re.split(r"(\w+=…)", re.split(r"\n| \[while running", text)[0])
            raise InputError(*(Option(part) if part.endswith("=…") else part for part in parts)) from None
        raise
    counters = result.metrics().query()[result.metrics().COUNTERS]
    return collections.Counter({counter.key.metric.name: counter.result for counter in counters
                                if counter.key.metric.namespace == namespace})
