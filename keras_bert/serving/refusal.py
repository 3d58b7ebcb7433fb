"""The exception for requests that cannot be answered."""


class RequestError(Exception):
    """The reason why a request cannot be answered, for the client.

    Args:
        status: HTTP status; the gRPC status is derived from it.
        message: one sentence.
        headers: dict of the response's headers.
    """

    def __init__(self, status, message, headers=None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}

    def __reduce__(self):  # Ray sends it between processes
        return RequestError, (self.status, self.message, self.headers)
