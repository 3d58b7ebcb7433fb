"""Serves an exported classifier with Ray Serve, which starts and restarts replicas and joins requests to batches.

    cd examples
    serve run ray_serve:build model=/shared/answers
    curl localhost:8000 --json '{"text": "turn off the lights"}'

The model is the folder that `keras-bert export text-model` wrote, at the same path on all machines; only TensorFlow is
needed to run it. Each replica uses one core. Copy this file and adapt it to your model. It has no limits for requests:
those of `keras-bert serve`, its token and TensorFlow Serving's interfaces are missing here.
"""

import tensorflow as tf
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 1},
                  autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 16})
class Answers:
    """A replica, which loads the model once."""

    def __init__(self, model: str) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.model = tf.saved_model.load(model)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0)
    async def answer(self, texts: list[str]) -> list[dict]:
        found = self.model(tf.constant(texts))
        labels = [label.decode() for label in found["label"].numpy()]
        return [{"label": label, "score": score} for label, score in zip(labels, found["score"].numpy().tolist())]

    async def __call__(self, request: Request) -> dict:
        return await self.answer((await request.json())["text"])


def build(arguments: dict[str, str]) -> serve.Application:
    """Returns the application; `arguments` are those of `serve run`."""
    return Answers.bind(arguments["model"])
