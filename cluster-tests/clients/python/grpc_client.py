"""What an application does with the official Python client of the 3.x generation, which speaks gRPC.

    grpc_client.py SERVERS SCRATCH   main addresses separated by commas; a folder for the client's cache and logs
"""

import asyncio
import os
import sys
import time

from v2.nacos import (
    BatchRegisterInstanceParam,
    ClientConfigBuilder,
    DeregisterInstanceParam,
    ListInstanceParam,
    ListServiceParam,
    NacosNamingService,
    RegisterInstanceParam,
    SubscribeServiceParam,
)

from driver import RECONNECTED, SOON, UNICODE, ask, check, run_async, until_async

SERVERS, SCRATCH = sys.argv[1], sys.argv[2]
GROUP = "DEFAULT_GROUP"
made = 0


async def client():
    """A client with a cache of its own, so that no list comes from a file of another."""
    global made
    made += 1
    config = (
        ClientConfigBuilder()
        .server_address(SERVERS)
        .log_level("WARNING")
        .log_dir(os.path.join(SCRATCH, "log"))
        .cache_dir(os.path.join(SCRATCH, f"cache-{made}"))
        .load_cache_at_start(False)
        .build()
    )
    # The default ignores a push of an empty list.
    config.set_update_cache_when_empty(True)
    naming = await NacosNamingService.create_naming_service(config)
    await until_async("the client is connected", RECONNECTED, lambda: connected(naming))
    return naming


async def connected(naming):
    check(await naming.server_health(), "the client says that the server is not healthy")


def row(service, ip, port=8080, **more):
    return RegisterInstanceParam(service_name=service, ip=ip, port=port, **more)


def removed(service, ip, port=8080, **more):
    return DeregisterInstanceParam(service_name=service, ip=ip, port=port, **more)


async def listed(naming, service, group=GROUP, clusters=(), healthy=None):
    """The list as the server has it now (`subscribe=False` makes the client ask)."""
    request = ListInstanceParam(
        service_name=service, group_name=group, clusters=list(clusters), subscribe=False, healthy_only=healthy
    )
    return await naming.list_instances(request)


async def addresses(naming, service, wanted, group=GROUP):
    async def attempt():
        now = sorted(f"{i.ip}:{i.port}" for i in await listed(naming, service, group))
        check(now == wanted, f"it is {now}")

    await until_async(f"{service} of {group} is {wanted}", SOON, attempt)


class Seen:
    """The list as a subscriber's callback was told it."""

    def __init__(self, service):
        self.now = []

        async def callback(instances):
            self.now = list(instances)

        self.request = SubscribeServiceParam(service_name=service, subscribe_callback=callback)

    async def until(self, what, wanted, within=SOON):
        async def attempt():
            check(wanted(self.now), f"the last list was {self.now}")

        await until_async(what, within, attempt)


async def register_query_select():
    provider, consumer = await client(), await client()
    check(await provider.register_instance(row("py-query", "10.2.0.1")), "registering answered no")
    await addresses(consumer, "py-query", ["10.2.0.1:8080"])
    (one,) = await listed(consumer, "py-query")
    check(one.healthy and one.enabled and one.ephemeral and one.weight == 1.0, one)
    check(one.clusterName == "DEFAULT" and one.serviceName == "DEFAULT_GROUP@@py-query", one)
    check(one.instanceId == "10.2.0.1#8080#DEFAULT#DEFAULT_GROUP@@py-query", one)
    check(len(await listed(consumer, "py-query", healthy=True)) == 1, "no healthy one")
    check(len(await listed(consumer, "py-query", healthy=False)) == 0, "an unhealthy one")


async def subscribe():
    provider, other, consumer = await client(), await client(), await client()
    seen = Seen("py-watch")
    await consumer.subscribe(seen.request)
    await provider.register_instance(row("py-watch", "10.2.1.1"))
    await seen.until("the instance is notified", lambda now: len(now) == 1)
    await provider.update_instance(row("py-watch", "10.2.1.1", weight=3.0))
    await seen.until("the change is notified", lambda now: [i.weight for i in now] == [3.0])
    await other.register_instance(row("py-watch", "10.2.1.2"))
    await seen.until("the second is notified", lambda now: len(now) == 2)
    await provider.deregister_instance(removed("py-watch", "10.2.1.1"))
    await seen.until("the removal is notified", lambda now: [i.ip for i in now] == ["10.2.1.2"])
    await other.deregister_instance(removed("py-watch", "10.2.1.2"))
    await seen.until("the last removal is notified", lambda now: not now)


async def unsubscribe():
    provider, consumer = await client(), await client()
    seen = Seen("py-unwatch")
    await consumer.subscribe(seen.request)
    await provider.register_instance(row("py-unwatch", "10.2.2.1"))
    await seen.until("the instance is notified", lambda now: len(now) == 1)
    await consumer.unsubscribe(seen.request)
    await provider.deregister_instance(removed("py-unwatch", "10.2.2.1"))
    other = await client()
    await addresses(other, "py-unwatch", [])
    await asyncio.sleep(0.5)
    check(len(seen.now) == 1, f"notified after unsubscribing: {seen.now}")


async def deregister():
    provider, consumer = await client(), await client()
    await provider.register_instance(row("py-leave", "10.2.3.1"))
    await addresses(consumer, "py-leave", ["10.2.3.1:8080"])
    check(await provider.deregister_instance(removed("py-leave", "10.2.3.1")), "deregistering answered no")
    await addresses(consumer, "py-leave", [])


async def batch():
    provider, consumer = await client(), await client()
    three = [row("py-batch", "10.2.4.1", 1), row("py-batch", "10.2.4.1", 2), row("py-batch", "10.2.4.2", 3)]
    request = BatchRegisterInstanceParam(service_name="py-batch", instances=three)
    check(await provider.batch_register_instances(request), "the batch answered no")
    await addresses(consumer, "py-batch", ["10.2.4.1:1", "10.2.4.1:2", "10.2.4.2:3"])
    # The client sends the batch again without the one that goes.
    await provider.batch_deregister_instances(BatchRegisterInstanceParam(service_name="py-batch", instances=three[1:2]))
    await addresses(consumer, "py-batch", ["10.2.4.1:1", "10.2.4.2:3"])


async def groups():
    provider, consumer = await client(), await client()
    await provider.register_instance(row("py-group", "10.2.5.1", group_name="blue"))
    await provider.register_instance(row("py-group", "10.2.5.2", group_name="green"))
    await addresses(consumer, "py-group", ["10.2.5.1:8080"], "blue")
    await addresses(consumer, "py-group", ["10.2.5.2:8080"], "green")
    await addresses(consumer, "py-group", [])


async def clusters():
    first, second, consumer = await client(), await client(), await client()
    await first.register_instance(row("py-clusters", "10.2.6.1", cluster_name="east"))
    await second.register_instance(row("py-clusters", "10.2.6.2", cluster_name="west"))
    await addresses(consumer, "py-clusters", ["10.2.6.1:8080", "10.2.6.2:8080"])
    east = await listed(consumer, "py-clusters", clusters=["east"])
    check([(i.ip, i.clusterName) for i in east] == [("10.2.6.1", "east")], east)
    check(not await listed(consumer, "py-clusters", clusters=["north"]), "something in north")


async def metadata():
    provider, consumer = await client(), await client()
    seen = Seen("py-metadata")
    await consumer.subscribe(seen.request)
    await provider.register_instance(row("py-metadata", "10.2.7.1", metadata=UNICODE, weight=2.5))
    await seen.until("the metadata are notified", lambda now: [i.metadata for i in now] == [UNICODE])
    (one,) = await listed(consumer, "py-metadata")
    check(one.metadata == UNICODE and one.weight == 2.5, one)


async def service_list():
    provider, consumer = await client(), await client()
    names = ["py-list-a", "py-list-b", "py-list-c"]
    for name in names:
        await provider.register_instance(row(name, "10.2.8.1", group_name="py-lists"))

    async def attempt():
        pages = [
            await consumer.list_services(
                ListServiceParam(namespace_id="public", group_name="py-lists", page_no=number, page_size=2)
            )
            for number in (1, 2)
        ]
        check([page.count for page in pages] == [3, 3], pages)
        check([len(page.services) for page in pages] == [2, 1], pages)
        check(sorted(pages[0].services + pages[1].services) == names, pages)

    await until_async("all three are listed, in two pages", SOON, attempt)


async def gone():
    provider, consumer = await client(), await client()
    seen = Seen("py-gone")
    await consumer.subscribe(seen.request)
    await provider.register_instance(row("py-gone", "10.2.9.1"))
    await seen.until("the instance is notified", lambda now: len(now) == 1)
    await provider.shutdown()
    await seen.until("its end is notified", lambda now: not now)


async def restart():
    provider, subscriber = await client(), await client()
    await provider.register_instance(row("py-restart", "10.2.10.1"))
    seen = Seen("py-restart")
    await subscriber.subscribe(seen.request)
    await seen.until("the instance is notified", lambda now: len(now) == 1)

    await asyncio.to_thread(ask, f"kill the publisher of {GROUP}@@py-restart")
    late = await client()
    await late.register_instance(row("py-restart", "10.2.10.2"))
    await seen.until("both are notified", lambda now: len(now) == 2, RECONNECTED)
    # Longer than rows of a node that is gone are kept (the test sets 40 s, since this client registers again only at
    # the ticks of a timer of 30 s): what is still listed has been registered again.
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        now = await listed(late, "py-restart")
        check("10.2.10.1" in [i.ip for i in now], f"the list lacks a live instance: {now}")
        await asyncio.sleep(0.1)

    await asyncio.to_thread(ask, "start it again")
    await addresses(late, "py-restart", ["10.2.10.1:8080", "10.2.10.2:8080"])

    async def leave():
        check(await provider.deregister_instance(removed("py-restart", "10.2.10.1")), "deregistering answered no")

    await until_async("the provider deregisters", RECONNECTED, leave)
    await seen.until("the removal is notified", lambda now: [i.ip for i in now] == ["10.2.10.2"], RECONNECTED)
    await addresses(await client(), "py-restart", ["10.2.10.2:8080"])


SCENARIOS = {
    "register, query, select": register_query_select,
    "subscribe: change and removal": subscribe,
    "unsubscribe": unsubscribe,
    "deregister": deregister,
    "batch": batch,
    "groups are apart": groups,
    "clusters": clusters,
    "metadata with Unicode": metadata,
    "service list": service_list,
    "a client that goes takes its instance along": gone,
    "restart of the node it is connected to": restart,
}

if __name__ == "__main__":
    code = asyncio.run(run_async(SCENARIOS))
    sys.stdout.flush()
    # The client's own tasks and channels need not be waited for.
    os._exit(code)
