"""The settings of `keras-bert serve`, for the supervisor and, as JSON, for the workers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """The values of the flags of `keras-bert serve`, whose help describes them.

    Args:
        models: dict of names to paths.
        token: bearer token that requests must send; "" for none.
        threads: number of TensorFlow's threads per worker; set by the supervisor.
    """

    models: dict
    host: str
    port: int
    grpc_port: int
    workers: int
    max_batch_tokens: int
    batch_timeout_ms: float
    max_queue: int
    max_body_mb: float
    max_instances: int
    max_characters: int
    body_timeout_s: float
    timeout_s: float
    grace_s: float
    token: str
    threads: int = 1

    @property
    def max_body(self):
        """The maximum size of a request, in bytes."""
        return int(self.max_body_mb * 2**20)
