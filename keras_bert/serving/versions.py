"""The versions of a model in its folder, and the hand-over from one to the next without a request lost."""

import asyncio
import contextlib
import dataclasses
import os

from keras_bert.errors import InputError
from keras_bert.files import reading
from keras_bert.serving.refusal import Refused


def find_versions(path):
    """The versions under `path`, as TensorFlow Serving has them: a dict of numbers to folders. `path` may be a
    SavedModel itself, which is version 1.

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
        InputError: there is none.
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
    """The versions of one model; the largest that can be loaded is served.

    Args:
        name: of the model.
        path: see `find_versions`.
        load: coroutine function of a folder; returns a loaded version, with a coroutine method `close`.
        tell: function of keywords, told of what happens.

    Attributes:
        states: dict of numbers to (state, message), the state as `ModelVersionStatus` names it, the message of an
            error or "".
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
        """Gives the number and the loaded version, which stays loaded within the block.

        Args:
            number: of the version that is wanted; None for the one that is served.

        Raises:
            Refused: it is not served.
        """
        served = self._served
        if number is not None and number not in self.states:
            raise Refused(404, f"{self.name} has no version {number}")
        if served is None:
            raise Refused(503, f"{self.name} has no version to answer with", {"Retry-After": "1"})
        if number not in (None, served.number):
            raise Refused(404, f"{self.name}: version {number} is not served, version {served.number} is")
        served.users += 1
        try:
            yield served.number, served.version
        finally:
            served.users -= 1

    async def watch(self, seconds=1):
        """Looks at the folder for ever. One that is away for a moment, of a network say, takes nothing down."""
        while True:
            with contextlib.suppress(InputError, OSError):
                await self.look()
            await asyncio.sleep(seconds)

    async def look(self):
        """Serves the largest version of the folder. One that cannot be loaded is left until its folder changes; what
        is served stays until there is something else, or the folder is empty."""
        found = await asyncio.to_thread(find_versions, self.path)
        for number in sorted(found, reverse=True):
            if number == self.current or await self._take_over(number, found[number]):
                return
        if not found and self._served:
            self._serve(None)

    async def _take_over(self, number, folder):
        """Whether a version could be loaded, and is served now."""
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
            self._retiring.add(task)  # asyncio itself keeps no reference
            task.add_done_callback(self._retiring.discard)

    async def _retire(self, served):
        """Lets what runs on a version end, then closes it."""
        self.states[served.number] = "UNLOADING", ""
        while served.users:
            await asyncio.sleep(0.05)
        await served.version.close()
        if served.number != self.current:
            self.states[served.number] = "END", ""
        self._tell(event="unloaded", model=self.name, version=served.number)


def _fingerprint(folder):
    """What changes when a folder does."""
    return sorted((entry.path, entry.stat().st_mtime_ns, entry.stat().st_size)
                  for where, _, _ in os.walk(folder) for entry in os.scandir(where))
