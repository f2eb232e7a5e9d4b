"""What the scenario programs in this folder share: the lines they speak with whoever started them, and waiting.

`ok NAME` or `FAILED NAME: reason` for each scenario; a line that starts with `? ` asks for something to be done to the
cluster and is answered by a line `done` on standard input.
"""

import asyncio
import sys
import time

# Seconds in which a change must reach every client.
SOON = 10
# Seconds in which a client must have found another node. The clients wait seconds between their tries.
RECONNECTED = 40
# Seconds of a whole scenario.
PATIENCE = 120

UNICODE = {
    "plain": "value",
    "名字": "服务 \U0001F980",
    "quote\"d": "back\\slash, {\"json\": [1]}",
    "empty": "",
    "línea": "a\nb\tc",
}


def say(line):
    print(line.replace("\n", " "), flush=True)


def ask(what):
    """Asks for something to be done and waits until it is."""
    say("? " + what)
    answer = sys.stdin.readline().strip()
    assert answer == "done", f"asked to {what}, the answer was {answer!r}"


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def until(what, within, attempt):
    """Repeats `attempt` until it raises nothing; gives what it gave."""
    deadline = time.monotonic() + within
    while True:
        try:
            return attempt()
        except Exception as error:  # whatever the client raises
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within} s: {what}: {error!r}") from error
        time.sleep(0.05)


async def until_async(what, within, attempt):
    """As `until`, for coroutines."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await attempt()
        except Exception as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within} s: {what}: {error!r}") from error
        await asyncio.sleep(0.05)


def report(name, error):
    if error is None:
        say(f"ok {name}")
    else:
        say(f"FAILED {name}: {type(error).__name__}: {error}")
    return error is None


def run(scenarios):
    """Runs the scenarios one after another; gives the exit code."""
    good = True
    for name, scenario in scenarios.items():
        try:
            scenario()
            good &= report(name, None)
        except Exception as error:
            good &= report(name, error)
    return 0 if good else 1


async def run_async(scenarios):
    """As `run`, for coroutines, each with a limit of time."""
    good = True
    for name, scenario in scenarios.items():
        try:
            await asyncio.wait_for(scenario(), PATIENCE)
            good &= report(name, None)
        except Exception as error:
            good &= report(name, error)
    return 0 if good else 1
