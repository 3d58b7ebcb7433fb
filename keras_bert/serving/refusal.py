"""What a client is told when a request cannot be answered."""


class Refused(Exception):
    """A request is not answered.

    Args:
        status: of HTTP; gRPC's follows from it.
        message: one sentence.
        headers: of the response, dict.
    """

    def __init__(self, status, message, headers=None):
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}

    def __reduce__(self):  # Ray sends it from process to process
        return Refused, (self.status, self.message, self.headers)
