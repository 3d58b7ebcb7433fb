"""The versions of a model in its folder, and the switch from one to the next without losing a request."""

import asyncio
import contextlib
import dataclasses
import os

from keras_bert.errors import InputError
from keras_bert.files import reading
from keras_bert.serving.refusal import RequestError


def find_versions(path):
    """Returns a dict of numbers to folders: the versions under `path`, in TensorFlow Serving's folder structure. If
    `path` is a SavedModel itself, it is version 1.

    Raises:
        InputError: `path` cannot be read.
    """
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return {1: path}
    with reading(path):
        return {int(entry.name): entry.path for entry in os.scandir(path)
                if entry.name.isascii() and entry.name.isdecimal() and entry.is_dir()}


def check_model(path):
    """Returns the number of the version that is served first.

    Raises:
        InputError: there is no version, or this one is not a SavedModel.
    """
    versions = find_versions(path)
    if not versions:
        raise InputError(f"{path}: must be a SavedModel, or hold some in folders whose names are numbers")
    number = max(versions)
    if not os.path.isfile(os.path.join(versions[number], "saved_model.pb")):
        raise InputError(f"{versions[number]}: must be a SavedModel; there is no saved_model.pb")
    return number


@dataclasses.dataclass
class _Served:
    number: int
    version: object
    users: int = 0


class Model:
    """The versions of one model. The largest version that can be loaded is served.

    Args:
        name: name of the model.
        path: see `find_versions`.
        load: coroutine function from a folder to a loaded version, which has a coroutine method `close`.
        tell: function that is called with the fields of each event as keywords.

    Attributes:
        states: dict of numbers to (state, message). The state is a name of `ModelVersionStatus`; the message is that of
            an error, or "".
    """

    def __init__(self, name, path, load, tell):
        self.name, self.path, self.states = name, path, {}
        self._load, self._tell = load, tell
        self._served, self._failed, self._retiring = None, {}, set()

    @property
    def current(self):
        """The number of the version that is served, or None."""
        return self._served and self._served.number

    @contextlib.contextmanager
    def lease(self, number=None):
        """Context manager that yields the number and the loaded version, which stays loaded until the block ends.

        Args:
            number: the version number; None for the served version.

        Raises:
            RequestError: the version is not served.
        """
        served = self._served
        if number is not None and number not in self.states:
            raise RequestError(404, f"{self.name} has no version {number}")
        if served is None:
            raise RequestError(503, f"{self.name} has no version to answer with", {"Retry-After": "1"})
        if number not in (None, served.number):
            raise RequestError(404, f"{self.name}: version {number} is not served, version {served.number} is")
        served.users += 1
        try:
            yield served.number, served.version
        finally:
            served.users -= 1

    async def watch(self, seconds=1):
        """Checks the folder forever. If it is not available for a moment, for example on a network, the served version
        stays."""
        while True:
            with contextlib.suppress(InputError, OSError):
                await self.look()
            await asyncio.sleep(seconds)

    async def look(self):
        """Serves the largest version in the folder that can be loaded. One that cannot be loaded is skipped until its
        folder changes. The served version stays until another one is loaded or the folder is empty."""
        found = await asyncio.to_thread(find_versions, self.path)
        for number in sorted(found, reverse=True):
            if number == self.current or await self._take_over(number, found[number]):
                return
        if not found and self._served:
            self._serve(None)

    async def _take_over(self, number, folder):
        """Loads a version and serves it; returns True if it could be loaded."""
        looks = await asyncio.to_thread(_fingerprint, folder)
        if self._failed.get(number) == looks:
            return False
        self.states[number] = "LOADING", ""
        try:
            version = await self._load(folder)
        except Exception as error:
            self._failed[number] = looks
            message = " ".join(str(error).split())[:500] or type(error).__name__
            self.states[number] = "END", message
            self._tell(event="failed", model=self.name, version=number, error=message)
            return False
        self._serve(_Served(number, version))
        self.states[number] = "AVAILABLE", ""
        self._tell(event="available", model=self.name, version=number)
        return True

    def _serve(self, served):
        old, self._served = self._served, served
        if old:
            task = asyncio.create_task(self._retire(old))
            self._retiring.add(task)  # asyncio itself keeps no reference to a task
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, served):
        """Waits until the requests on a version have ended, then closes it."""
        self.states[served.number] = "UNLOADING", ""
        while served.users:
            await asyncio.sleep(0.05)
        await served.version.close()
        if served.number != self.current:
            self.states[served.number] = "END", ""
        self._tell(event="unloaded", model=self.name, version=served.number)


def _fingerprint(folder):
    """Returns a value that changes when the folder does."""
    return sorted((entry.path, entry.stat().st_mtime_ns, entry.stat().st_size)
                  for where, _, _ in os.walk(folder) for entry in os.scandir(where))
