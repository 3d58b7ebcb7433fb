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
    host: str = "127.0.0.1"
    port: int = 8501
    grpc_port: int = 8500
    workers: int = 1
    max_batch_tokens: int = 2048
    batch_timeout_ms: float = 2.0
    max_queue: int = 512
    max_body_mb: float = 16.0
    max_instances: int = 1024
    max_characters: int = 100_000
    body_timeout_s: float = 20.0
    timeout_s: float = 30.0
    grace_s: float = 20.0
    token: str = ""
    threads: int = 1

    @property
    def max_body(self):
        """Bytes."""
        return int(self.max_body_mb * 2**20)
