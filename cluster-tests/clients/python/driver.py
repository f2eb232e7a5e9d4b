"""What the scenario programs in this folder share: the lines they speak with whoever started them, waiting, providers
in processes of their own, and the data of the scenarios.

    PROGRAM SERVERS SCRATCH                    runs the scenarios
    PROGRAM SERVERS SCRATCH hold SERVICE...    registers these services until standard input ends or it is killed
    PROGRAM SERVERS SCRATCH watch SERVICE...   prints `listed SERVICE COUNT` whenever it is told a list, as long

SERVERS are main addresses separated by commas; SCRATCH is a folder for what the clients write. `ok NAME`,
`FAILED NAME: reason` or `without NAME: reason` is printed for each scenario; a line that starts with `? ` asks for
something to be done to the cluster and is answered by a line `done` on standard input.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

SERVERS, SCRATCH = sys.argv[1].split(","), sys.argv[2]
GROUP = "DEFAULT_GROUP"
PUBLIC = "public"

# Seconds in which a change must reach every client.
SOON = 10
# Seconds in which a client must have found another node. The clients wait seconds between their tries.
RECONNECTED = 40
# Seconds of a whole scenario.
PATIENCE = 120

ODD_GROUP = "G_1-a.b:c"
OTHER_NAMESPACE = "7b0b4c1e-blue"
WEIGHTS = (0.0, 0.25, 99.5)
METADATA = {
    "plain": "value",
    "名字": "服务 \U0001F980",
    'quote"d': "it's \"so\"",
    "back\\slash": "C:\\new\\",
    "json": '{"a": [1, null, {"b": "c"}]}',
    "lines": "a\nb\r\nc\td",
    "separators": "a@@b#c,d;e=f&g?h%20+/|:",
    "empty": "",
}


def dubbo_names(client):
    """Names that Dubbo gives to the services of an interface, with and without a group of its own."""
    return [f"providers:com.example.{client}.Api:1.0.0:", f"providers:com.example.{client}.Api:1.0.0:orders"]


def say(line):
    print(line.replace("\n", " "), flush=True)


def ask(what):
    """Asks for something to be done and waits until it is."""
    say("? " + what)
    answer = sys.stdin.readline().strip()
    check(answer == "done", f"asked to {what}, the answer was {answer!r}")


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def check_fields(instance, **wanted):
    """Checks those fields of an instance, which is a dict."""
    found = {name: instance.get(name) for name in wanted}
    check(found == wanted, f"{found}, not {wanted}")


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


def addresses(instances):
    """`ip:port` of each instance, which are dicts, in order."""
    return sorted(f"{i['ip']}:{i['port']}" for i in instances)


def served(server, service, group=GROUP, namespace=PUBLIC):
    """The instances that a node lists when it is asked over HTTP: clients answer from caches."""
    query = urllib.parse.urlencode({"serviceName": service, "groupName": group, "namespaceId": namespace})
    with urllib.request.urlopen(f"http://{server}/nacos/v1/ns/instance/list?{query}", timeout=SOON) as answer:
        return json.load(answer)["hosts"]


def served_by_the_living(service):
    """The lists of the nodes that can be reached: two of three at least."""
    lists = []
    for server in SERVERS:
        try:
            lists.append(served(server, service))
        except OSError:  # `URLError` is one too
            pass
    check(len(lists) >= 2, f"only {len(lists)} nodes answer")
    return lists


def check_listed(address, lists):
    check(all(address in addresses(now) for now in lists), f"a live instance is missing: {lists}")


class Held:
    """A provider in a process of its own: this program, started with `hold`."""

    def __init__(self, *services):
        command = [sys.executable, sys.argv[0], sys.argv[1], SCRATCH, "hold", *services]
        # It ends when its standard input does, so that none is left behind.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def kill(self):
        """Ends it by SIGKILL: it has no time to deregister."""
        self.process.kill()
        self.process.wait()


def services_to(verb):
    """The services that this process was started to `hold` or to `watch`, if it was."""
    return sys.argv[4:] if sys.argv[3:4] == [verb] else []


async def run(scenarios, alone, without):
    """Runs scenarios, functions or coroutines by name: all of them at once, but for those `alone`, one after another at
    the end. `without` has reasons by name. Gives the exit code."""
    for name, reason in without.items():
        say(f"without {name}: {reason}")
    # A thread for each scenario that is no coroutine, and some for what they ask meanwhile.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * len(scenarios)))
    good = await asyncio.gather(*(one(name, scenario) for name, scenario in scenarios.items()))
    for name, scenario in alone.items():
        good.append(await one(name, scenario))
    return 0 if all(good) else 1


async def one(name, scenario):
    """Runs a scenario with a limit of time; says whether it passed."""
    running = scenario() if asyncio.iscoroutinefunction(scenario) else asyncio.to_thread(scenario)
    try:
        await asyncio.wait_for(running, PATIENCE)
    except Exception as error:
        say(f"FAILED {name}: {type(error).__name__}: {error}")
        return False
    say(f"ok {name}")
    return True


def main(hold, scenarios, alone, without, watch=None):
    """Does what the arguments say and ends the process: tasks and threads of the clients need not be waited for.
    `hold` is a coroutine that registers the services it is given; `watch` is one that subscribes to them."""

    async def until_told(begin, services):
        await begin(services)
        await asyncio.to_thread(sys.stdin.read)
        return 0

    if held := services_to("hold"):
        code = asyncio.run(until_told(hold, held))
    elif watched := services_to("watch"):
        code = asyncio.run(until_told(watch, watched))
    else:
        code = asyncio.run(run(scenarios, alone, without))
    sys.stdout.flush()
    os._exit(code)
