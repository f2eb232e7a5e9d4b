"""What an application does with the official Python client of the 2.x and 3.x generations, which speaks gRPC. How the
program is started is in `driver.py`.
"""

import asyncio
import os
import tempfile
import time
from importlib.metadata import version

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

from driver import (
    GROUP,
    METADATA,
    ODD_GROUP,
    OTHER_NAMESPACE,
    PUBLIC,
    RECONNECTED,
    SCRATCH,
    SERVERS,
    SOON,
    WEIGHTS,
    Held,
    addresses,
    ask,
    check,
    check_fields,
    check_listed,
    dubbo_names,
    main,
    say,
    served,
    served_by_the_living,
    until_async,
)

# What the names of the services begin with: `py2` or `py3`.
CLIENT = "py" + version("nacos-sdk-python").partition(".")[0]
# Longer than rows are kept whose node is gone and whose client is one of these, `orphan_gone` and `orphan_slow_extra`.
GRACE = 45
clients = []


async def client(node=None, namespace=PUBLIC):
    """A client of one node, or of all, with a cache of its own, so that no list comes from a file of another."""
    config = (
        ClientConfigBuilder()
        .server_address(",".join(SERVERS) if node is None else SERVERS[node])
        .namespace_id(namespace)
        .log_level("WARNING")
        .log_dir(os.path.join(SCRATCH, "log"))
        .cache_dir(tempfile.mkdtemp(prefix="cache-", dir=SCRATCH))
        .load_cache_at_start(False)
        .build()
    )
    # The default ignores a push of an empty list.
    config.set_update_cache_when_empty(True)
    naming = await NacosNamingService.create_naming_service(config)
    clients.append(naming)

    async def connected():
        check(await naming.server_health(), "the client says that the server is not healthy")

    await until_async("the client is connected", RECONNECTED, connected)
    return naming


async def close_clients():
    for naming in clients:
        try:
            await naming.shutdown()
        except TypeError:
            # That of 2.x awaits something that is no coroutine when all is done.
            pass
    clients.clear()


def row(service, ip, port=8080, **more):
    return RegisterInstanceParam(service_name=service, ip=ip, port=port, **more)


def rows(service, instances, **more):
    return BatchRegisterInstanceParam(service_name=service, instances=instances, **more)


async def register(naming, service, ip, port=8080, **more):
    check(await naming.register_instance(row(service, ip, port, **more)), "registering answered no")


async def deregister_row(naming, service, ip, port=8080, **more):
    request = DeregisterInstanceParam(service_name=service, ip=ip, port=port, **more)
    check(await naming.deregister_instance(request), "deregistering answered no")


async def listed(naming, service, group=GROUP, clusters=(), healthy=None):
    """The list as the client has it. It subscribes when it is first asked."""
    request = ListInstanceParam(service_name=service, group_name=group, clusters=list(clusters), healthy_only=healthy)
    return [instance.model_dump() for instance in await naming.list_instances(request)]


async def everywhere(naming, service, wanted, group=GROUP, namespace=PUBLIC):
    """Waits until this client and all nodes list these addresses."""

    async def attempt():
        lists = [await listed(naming, service, group)]
        for server in SERVERS:
            lists.append(await asyncio.to_thread(served, server, service, group, namespace))
        found = [addresses(instances) for instances in lists]
        check(all(now == wanted for now in found), f"at the client and at the nodes: {found}")

    await until_async(f"{service} of {group} is {wanted}", SOON, attempt)


class Seen:
    """The list as a subscriber's callback was told it."""

    def __init__(self, service, group, clusters):
        self.now = None
        self.calls = 0

        async def callback(instances):
            self.now = [instance.model_dump() for instance in instances]
            self.calls += 1

        self.request = SubscribeServiceParam(
            service_name=service, group_name=group, clusters=list(clusters), subscribe_callback=callback
        )

    @classmethod
    async def by(cls, naming, service, group=GROUP, clusters=()):
        seen = cls(service, group, clusters)
        await naming.subscribe(seen.request)
        return seen

    async def until(self, what, wanted, within=SOON):
        async def attempt():
            check(self.now is not None and wanted(self.now), f"the last list was {self.now}")

        await until_async(what, within, attempt)

    async def until_addresses(self, *wanted, within=SOON):
        await self.until(f"told of {wanted}", lambda now: addresses(now) == list(wanted), within)


async def register_one():
    service = f"{CLIENT}-register"
    provider, consumer = await client(0), await client(1)
    await register(provider, service, "10.2.0.1", 8081, weight=2.5, metadata={"zone": "a"}, cluster_name="east")
    await everywhere(consumer, service, ["10.2.0.1:8081"])
    (one,) = await listed(consumer, service)
    check_fields(
        one,
        ip="10.2.0.1",
        port=8081,
        weight=2.5,
        healthy=True,
        enabled=True,
        ephemeral=True,
        clusterName="east",
        serviceName=f"{GROUP}@@{service}",
        instanceId=f"10.2.0.1#8081#east#{GROUP}@@{service}",
        metadata={"zone": "a"},
    )
    # Without a cluster it is in the default one.
    await register(provider, f"{service}-plain", "10.2.0.2")
    await everywhere(consumer, f"{service}-plain", ["10.2.0.2:8080"])
    (plain,) = await listed(consumer, f"{service}-plain")
    check_fields(plain, clusterName="DEFAULT", weight=1.0, metadata={})


async def select_healthy():
    service = f"{CLIENT}-select"
    provider, consumer = await client(1), await client(2)
    three = [
        row(service, "10.2.1.1"),
        row(service, "10.2.1.2", healthy=False),
        row(service, "10.2.1.3", enabled=False),
    ]
    check(await provider.batch_register_instances(rows(service, three)), "the batch answered no")
    await everywhere(consumer, service, ["10.2.1.1:8080", "10.2.1.2:8080"])
    for healthy, ip in (True, "10.2.1.1"), (False, "10.2.1.2"):
        found = [i["ip"] for i in await listed(consumer, service, healthy=healthy)]
        check(found == [ip], f"healthy {healthy}: {found}")


async def weight():
    service = f"{CLIENT}-weight"
    provider, consumer = await client(2), await client(0)
    seen = await Seen.by(consumer, service)
    for value in WEIGHTS:
        await register(provider, service, "10.2.2.1", weight=value)
        await seen.until(f"told of the weight {value}", lambda now: [i["weight"] for i in now] == [value])
        check([i["weight"] for i in await listed(consumer, service)] == [value], "the list has another weight")


async def subscribe():
    service = f"{CLIENT}-subscribe"
    provider, other, consumer = await client(0), await client(1), await client(2)
    seen = await Seen.by(consumer, service)
    await register(provider, service, "10.2.3.1")
    await seen.until_addresses("10.2.3.1:8080")
    await provider.update_instance(row(service, "10.2.3.1", weight=3.0))
    await seen.until("told of the weight", lambda now: [i["weight"] for i in now] == [3.0])
    await provider.update_instance(row(service, "10.2.3.1", weight=3.0, metadata={"zone": "b"}))
    await seen.until("told of the metadata", lambda now: [i["metadata"] for i in now] == [{"zone": "b"}])
    await register(other, service, "10.2.3.2")
    await seen.until_addresses("10.2.3.1:8080", "10.2.3.2:8080")
    await deregister_row(provider, service, "10.2.3.1")
    await seen.until_addresses("10.2.3.2:8080")
    await deregister_row(other, service, "10.2.3.2")
    await seen.until_addresses()


async def unsubscribe():
    service = f"{CLIENT}-unsubscribe"
    provider, consumer, witness = await client(0), await client(1), await client(1)
    seen, told = await Seen.by(consumer, service), await Seen.by(witness, service)
    await register(provider, service, "10.2.4.1")
    await seen.until_addresses("10.2.4.1:8080")
    await consumer.unsubscribe(seen.request)
    calls = seen.calls
    # Two changes that another subscriber at the same node is told: the first would have arrived by then.
    for value in 2.0, 3.0:
        await provider.update_instance(row(service, "10.2.4.1", weight=value))
        await told.until(f"told of the weight {value}", lambda now: [i["weight"] for i in now] == [value])
    check(seen.calls == calls, f"called after unsubscribing: {seen.now}")
    again = await Seen.by(consumer, service)
    await again.until("told of the weight", lambda now: [i["weight"] for i in now] == [3.0])
    await deregister_row(provider, service, "10.2.4.1")
    await again.until_addresses()
    check(seen.calls == calls, f"called after unsubscribing: {seen.now}")


async def deregister():
    service = f"{CLIENT}-deregister"
    provider, consumer = await client(1), await client(0)
    await register(provider, service, "10.2.5.1")
    await everywhere(consumer, service, ["10.2.5.1:8080"])
    await deregister_row(provider, service, "10.2.5.1")
    await everywhere(consumer, service, [])


async def batch():
    service = f"{CLIENT}-batch"
    provider, consumer = await client(2), await client(1)
    three = [row(service, "10.2.6.1", 1), row(service, "10.2.6.1", 2), row(service, "10.2.6.2", 3)]
    check(await provider.batch_register_instances(rows(service, three)), "the batch answered no")
    await everywhere(consumer, service, ["10.2.6.1:1", "10.2.6.1:2", "10.2.6.2:3"])


async def batch_replacement():
    service = f"{CLIENT}-replacement"
    provider, consumer = await client(0), await client(2)
    one, two, three, four = (row(service, "10.2.7.1", port) for port in (1, 2, 3, 4))
    await provider.batch_register_instances(rows(service, [one, two, three]))
    await everywhere(consumer, service, ["10.2.7.1:1", "10.2.7.1:2", "10.2.7.1:3"])
    await provider.batch_register_instances(rows(service, [two, three, four]))
    await everywhere(consumer, service, ["10.2.7.1:2", "10.2.7.1:3", "10.2.7.1:4"])
    # The client sends the batch again without the one that goes.
    await provider.batch_deregister_instances(rows(service, [three]))
    await everywhere(consumer, service, ["10.2.7.1:2", "10.2.7.1:4"])


async def group():
    service = f"{CLIENT}-group"
    provider, consumer = await client(0), await client(1)
    for number, name in enumerate(["blue", "green", ODD_GROUP]):
        await register(provider, service, f"10.2.8.{number}", group_name=name)
    for number, name in enumerate(["blue", "green", ODD_GROUP]):
        await everywhere(consumer, service, [f"10.2.8.{number}:8080"], name)
    await everywhere(consumer, service, [])
    seen = await Seen.by(consumer, service, "blue")
    await deregister_row(provider, service, "10.2.8.0", group_name="blue")
    await seen.until_addresses()
    await everywhere(consumer, service, ["10.2.8.1:8080"], "green")


async def cluster():
    service = f"{CLIENT}-cluster"
    first, second, consumer = await client(1), await client(2), await client(0)
    wanted = {("east",): ["10.2.9.1:8080"], ("east", "west"): ["10.2.9.1:8080", "10.2.9.2:8080"], ("north",): []}
    wanted[()] = wanted["east", "west"]
    seen = {clusters: await Seen.by(consumer, service, clusters=clusters) for clusters in wanted}
    await register(first, service, "10.2.9.1", cluster_name="east")
    await register(second, service, "10.2.9.2", cluster_name="west")
    for clusters, instances in wanted.items():
        await seen[clusters].until_addresses(*instances)
        found = addresses(await listed(consumer, service, clusters=clusters))
        check(found == instances, f"{clusters}: {found}")
    await deregister_row(first, service, "10.2.9.1", cluster_name="east")
    await seen["east",].until_addresses()
    await seen[()].until_addresses("10.2.9.2:8080")


async def namespace():
    service = f"{CLIENT}-namespace"
    provider, consumer = await client(0), await client(1)
    other_provider, other_consumer = await client(0, OTHER_NAMESPACE), await client(1, OTHER_NAMESPACE)
    seen, other_seen = await Seen.by(consumer, service), await Seen.by(other_consumer, service)
    await register(provider, service, "10.2.10.1")
    await register(other_provider, service, "10.2.10.2")
    await seen.until_addresses("10.2.10.1:8080")
    await other_seen.until_addresses("10.2.10.2:8080")
    await everywhere(consumer, service, ["10.2.10.1:8080"])
    await everywhere(other_consumer, service, ["10.2.10.2:8080"], namespace=OTHER_NAMESPACE)
    await deregister_row(other_provider, service, "10.2.10.2")
    await other_seen.until_addresses()
    await everywhere(other_consumer, service, [], namespace=OTHER_NAMESPACE)
    await everywhere(consumer, service, ["10.2.10.1:8080"])


async def metadata():
    service = f"{CLIENT}-metadata"
    provider, consumer = await client(1), await client(2)
    seen = await Seen.by(consumer, service)
    await register(provider, service, "10.2.11.1", metadata=METADATA)
    await seen.until("told of the metadata", lambda now: [i["metadata"] for i in now] == [METADATA])
    await everywhere(consumer, service, ["10.2.11.1:8080"])
    for server in SERVERS:
        (one,) = await asyncio.to_thread(served, server, service)
        check(one["metadata"] == METADATA, f"at {server}: {one}")


async def names_of_dubbo():
    provider, consumer = await client(2), await client(0)
    for group_name in "DUBBO_GROUP", GROUP:
        for service in dubbo_names(CLIENT):
            seen = await Seen.by(consumer, service, group_name)
            await register(provider, service, "10.2.12.1", 20880, group_name=group_name, metadata={"side": "provider"})
            await seen.until_addresses("10.2.12.1:20880")
            await everywhere(consumer, service, ["10.2.12.1:20880"], group_name)
        services = await consumer.list_services(ListServiceParam(group_name=group_name, page_no=1, page_size=100))
        check(set(dubbo_names(CLIENT)) <= set(services.services), f"in {group_name} are {services}")


async def service_pages():
    group_name = f"{CLIENT}-pages"
    provider, consumer = await client(0), await client(1)
    names = [f"{CLIENT}-page-{number}" for number in range(7)]
    for name in names:
        await register(provider, name, "10.2.13.1", group_name=group_name)

    async def attempt():
        pages = [
            await consumer.list_services(ListServiceParam(group_name=group_name, page_no=number, page_size=3))
            for number in (1, 2, 3, 4)
        ]
        check([page.count for page in pages] == [7, 7, 7, 7], pages)
        check([len(page.services) for page in pages] == [3, 3, 1, 0], pages)
        check(sorted(name for page in pages for name in page.services) == names, pages)

    await until_async("seven are listed, in three pages", SOON, attempt)


async def hundred_instances():
    service = f"{CLIENT}-hundred"
    consumer = await client(2)
    seen = await Seen.by(consumer, service)
    providers = [await client(number % 3) for number in range(4)]
    batches = [[row(service, f"10.2.14.{n}", port) for port in range(1000, 1025)] for n in range(4)]
    for provider, instances in zip(providers, batches):
        check(await provider.batch_register_instances(rows(service, instances)), "the batch answered no")
    everyone = sorted(f"{i.ip}:{i.port}" for instances in batches for i in instances)
    await seen.until_addresses(*everyone)
    await everywhere(consumer, service, everyone)
    for provider, instances in zip(providers, batches):
        check(await provider.batch_deregister_instances(rows(service, instances)), "removing the batch answered no")
    await seen.until_addresses()
    await everywhere(consumer, service, [])


async def abrupt_death():
    services = [f"{CLIENT}-death-{number}" for number in range(2)]
    consumer = await client(1)
    seen = [await Seen.by(consumer, service) for service in services]
    provider = await asyncio.to_thread(Held, *services)
    for one in seen:
        await one.until_addresses("10.2.15.1:8080", within=RECONNECTED)
    await asyncio.to_thread(provider.kill)
    for one, service in zip(seen, services):
        await one.until_addresses()
        await everywhere(consumer, service, [])


async def hold(services):
    provider = await client(0)
    for service in services:
        await register(provider, service, "10.2.15.1")


async def watch(services):
    consumer = await client()
    for service in services:

        async def tell(instances, service=service):
            say(f"listed {service} {sum(instance.healthy for instance in instances)}")

        await consumer.subscribe(
            SubscribeServiceParam(service_name=service, group_name=GROUP, subscribe_callback=tell)
        )


async def two_publishers():
    service = f"{CLIENT}-publishers"
    first, second, consumer = await client(0), await client(1), await client(2)
    await register(first, service, "10.2.16.1", 1)
    await register(second, service, "10.2.16.1", 1)
    await everywhere(consumer, service, ["10.2.16.1:1"])
    await deregister_row(first, service, "10.2.16.1", 1)
    # What the same client does next is everywhere no sooner than that.
    await register(first, service, "10.2.16.1", 2)
    await everywhere(consumer, service, ["10.2.16.1:1", "10.2.16.1:2"])
    await deregister_row(second, service, "10.2.16.1", 1)
    await everywhere(consumer, service, ["10.2.16.1:2"])
    await register(second, service, "10.2.16.1", 3)
    await everywhere(consumer, service, ["10.2.16.1:2", "10.2.16.1:3"])
    await deregister_row(first, service, "10.2.16.1", 2)
    await everywhere(consumer, service, ["10.2.16.1:3"])
    await deregister_row(second, service, "10.2.16.1", 3)
    await everywhere(consumer, service, [])


async def redo():
    # Those of one node would look for it as long as it is down.
    await close_clients()
    service = f"{CLIENT}-redo"
    provider, consumer = await client(), await client()
    # The provider subscribes too: of these two, one at least loses its node.
    seen = [await Seen.by(naming, service) for naming in (provider, consumer)]
    await register(provider, service, "10.2.17.1")
    for one in seen:
        await one.until_addresses("10.2.17.1:8080")

    await asyncio.to_thread(ask, f"kill the publisher of {GROUP}@@{service}")
    deadline = time.monotonic() + GRACE
    late = await client()
    await register(late, service, "10.2.17.2")
    while time.monotonic() < deadline:
        check_listed("10.2.17.1:8080", await asyncio.to_thread(served_by_the_living, service))
        await asyncio.sleep(0.1)
    for one in seen:
        await one.until_addresses("10.2.17.1:8080", "10.2.17.2:8080")

    await asyncio.to_thread(ask, "start it again")
    await everywhere(late, service, ["10.2.17.1:8080", "10.2.17.2:8080"])
    await provider.update_instance(row(service, "10.2.17.1", weight=4.0))
    for one in seen:
        await one.until("told of the weight", lambda now: [i["weight"] for i in now if i["ip"] == "10.2.17.1"] == [4.0])
    await deregister_row(provider, service, "10.2.17.1")
    for one in seen:
        await one.until_addresses("10.2.17.2:8080")
    await everywhere(late, service, ["10.2.17.2:8080"])


SCENARIOS = {
    "register": register_one,
    "select_healthy": select_healthy,
    "weight": weight,
    "subscribe": subscribe,
    "unsubscribe": unsubscribe,
    "deregister": deregister,
    "batch": batch,
    "batch_replacement": batch_replacement,
    "group": group,
    "cluster": cluster,
    "namespace": namespace,
    "metadata": metadata,
    "dubbo_names": names_of_dubbo,
    "service_pages": service_pages,
    "hundred_instances": hundred_instances,
    "abrupt_death": abrupt_death,
    "two_publishers": two_publishers,
}

if __name__ == "__main__":
    main(
        hold,
        SCENARIOS,
        watch=watch,
        alone={"redo": redo},
        without={
            "no_beat_expiry": "the connection is the beat",
            "udp_push": "pushes come over the connection",
        },
    )
