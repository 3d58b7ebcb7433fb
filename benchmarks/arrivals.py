"""An open loop for benchmarks of servers: requests come when they come, whatever the answers, as users do.

A closed loop of clients that wait for answers slows down with the server, and so hides what users see when there are
more of them. Each answer's time counts from when its request was due, also if this process was late in sending it.
"""

import asyncio
import collections
import contextlib
import multiprocessing
import os
import random

import numpy as np


class Answers(list):
    """What came back: (status, seconds from when the request was due), status 0 if the connection was lost."""

    def counts(self):
        return collections.Counter(status for status, _ in self)

    def milliseconds(self, status, *percentiles):
        times = [1000 * seconds for each, seconds in self if each == status]
        return [float(np.percentile(times, percentile)) if times else None for percentile in percentiles]


async def _arrive(port, path, bodies, rate, seconds, seed):
    loop, draw = asyncio.get_running_loop(), random.Random(seed)
    idle, answers, tasks = [], Answers(), set()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n".encode()

    async def ask(body, due):
        try:
            reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % len(body) + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            await reader.readexactly(size)
            answers.append((int(lines[0].split()[1]), loop.time() - due))
            if b"connection: close" in lines:
                writer.close()
            else:
                idle.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            answers.append((0, loop.time() - due))

    due = begin = loop.time()
    for number in range(10**9):
        due += draw.expovariate(rate)
        if due > begin + seconds:
            break
        await asyncio.sleep(due - loop.time())
        tasks.add(task := asyncio.create_task(ask(bodies[number % len(bodies)], due)))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for _, writer in idle:
        writer.close()
    return answers


def _send(sender, core, *arguments):
    if core is not None:
        os.sched_setaffinity(0, [core])
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    sender.send(list(asyncio.run(_arrive(*arguments))))


@contextlib.contextmanager
def arriving(port, path, bodies, rate, seconds, seed=0, core=None):
    """Sends requests for some seconds from a process of its own, at random times (Poisson), on average `rate` per
    second. Yields a function that waits for the end and returns the `Answers`. `core`: the process's only core."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_send, daemon=True, args=(sender, core, port, path, bodies, rate, seconds, seed))
    process.start()
    yield lambda: Answers(receiver.recv())
    process.join()


def arrive(*arguments, **options):
    """The same, for one kind of requests alone: returns the `Answers`."""
    with arriving(*arguments, **options) as answers:
        return answers()
