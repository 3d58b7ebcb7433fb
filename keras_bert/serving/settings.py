"""What `keras-bert serve` is told, for the supervisor and, as JSON, for the workers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of `keras-bert serve`, see there.

    Args:
        models: dict of names to paths.
        token: the bearer token that requests need, or "".
        threads: of TensorFlow, a worker; the supervisor sets it.
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
        """Bytes."""
        return int(self.max_body_mb * 2**20)
