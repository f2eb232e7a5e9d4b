"""What an application does with the official Python client of the 1.x generation, which speaks HTTP v1. How the program
is started is in `driver.py`.
"""

import os
import time

import nacos

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
    served_by_the_living,
    until,
)

# What the names of the services begin with.
CLIENT = "py1"
# Seconds between two polls of a subscriber.
POLL = 0.2
# Seconds after its last beat in which an instance of this metadata goes; it turns unhealthy first.
GONE_AFTER = 8
SHORT = {
    "preserved.heart.beat.interval": "1000",
    "preserved.heart.beat.timeout": "3000",
    "preserved.ip.delete.timeout": str(GONE_AFTER * 1000),
}
# Seconds for which rows are watched whose owner is gone: longer than they would live without beats.
GRACE = 20


def client(first=0, namespace=PUBLIC):
    """A client that begins with this node and goes on to the next when it fails."""
    servers = SERVERS[first:] + SERVERS[:first]
    return nacos.NacosClient(",".join(servers), namespace=namespace, logDir=os.path.join(SCRATCH, "log"))


def register(naming, service, ip, port=8080, cluster="DEFAULT", **more):
    """Registers an instance. It beats once a second if `heartbeat_interval` is given, else never."""
    answer = naming.add_naming_instance(service, ip, port, cluster_name=cluster, **more)
    check(answer, "registering answered no")


def deregister_row(naming, service, ip, port=8080, cluster="DEFAULT", **more):
    answer = naming.remove_naming_instance(service, ip, port, cluster_name=cluster, **more)
    check(answer, "deregistering answered no")


def leave(naming, service, ip, left):
    """Deregisters a beating instance until every node lists just those that are left: a beat that is sent meanwhile
    registers it again."""

    def attempt():
        deregister_row(naming, service, ip)
        found = lists(service)
        check(all(addresses(now) == left for now in found), f"at the nodes: {found}")

    until(f"{service} is {left}", SOON, attempt)


def lists(service, namespace=PUBLIC, **more):
    """The instances that each node lists."""
    nodes = [client(node, namespace) for node in range(len(SERVERS))]
    return [naming.list_naming_instance(service, **more)["hosts"] for naming in nodes]


def everywhere(service, wanted, within=SOON, **more):
    """Waits until every node lists these addresses; gives the lists."""

    def attempt():
        found = lists(service, **more)
        check(all(addresses(now) == wanted for now in found), f"at the nodes: {found}")
        return found

    return until(f"{service} is {wanted}", within, attempt)


def until_health(service, wanted, within=SOON):
    """Waits until every node lists just these IPs, healthy or not."""

    def attempt():
        found = [{i["ip"]: i["healthy"] for i in now} for now in lists(service)]
        check(all(now == wanted for now in found), f"at the nodes: {found}")

    until(f"{service} is {wanted}", within, attempt)


class Seen:
    """The instances as a subscriber's listener was told of them. The client polls, and tells what changed."""

    def __init__(self, naming, service, poll=POLL, **more):
        self.now = {}
        self.calls = 0
        self.naming, self.service = naming, service
        self.listener = nacos.listener.SubscribeListener(self.called, "seen")
        naming.subscribe(self.listener, poll, service, **more)

    def called(self, event, local):
        self.calls += 1
        if event == nacos.listener.Event.DELETED:
            self.now.pop(local.instance_id, None)
        else:
            self.now[local.instance_id] = local.instance

    def until(self, what, wanted, within=SOON):
        def attempt():
            now = list(self.now.values())
            check(wanted(now), f"the instances told of are {now}")

        until(what, within, attempt)

    def until_addresses(self, *wanted, within=SOON):
        self.until(f"told of {wanted}", lambda now: addresses(now) == list(wanted), within)


def register_one():
    for node in range(len(SERVERS)):
        service = f"{CLIENT}-register-{node}"
        register(client(node), service, "10.3.0.1", 8081, "east", weight=2.5, metadata={"zone": "a"})
        for (one,) in everywhere(service, ["10.3.0.1:8081"]):
            check_fields(
                one,
                ip="10.3.0.1",
                port=8081,
                weight=2.5,
                healthy=True,
                enabled=True,
                ephemeral=True,
                clusterName="east",
                serviceName=f"{GROUP}@@{service}",
                instanceId=f"10.3.0.1#8081#east#{GROUP}@@{service}",
                metadata={"zone": "a"},
            )
        detail = client(node).get_naming_instance(service, "10.3.0.1", 8081, cluster_name="east")
        check_fields(detail, ip="10.3.0.1", port=8081, weight=2.5, healthy=True, clusterName="east")
    # The client sends the name of no cluster as `None`.
    register(client(), f"{CLIENT}-register-plain", "10.3.0.2", cluster=None)
    for (plain,) in everywhere(f"{CLIENT}-register-plain", ["10.3.0.2:8080"]):
        check_fields(plain, clusterName="None", weight=1.0, metadata={})


def select_healthy():
    service, provider = f"{CLIENT}-select", client(1)
    register(provider, service, "10.3.1.1")
    register(provider, service, "10.3.1.2", healthy=False)
    register(provider, service, "10.3.1.3", enable=False)
    everywhere(service, ["10.3.1.1:8080", "10.3.1.2:8080"])
    everywhere(service, ["10.3.1.1:8080"], healthy_only=True)
    check(provider.modify_naming_instance(service, "10.3.1.3", 8080, "DEFAULT", enable=True), "the change answered no")
    everywhere(service, ["10.3.1.1:8080", "10.3.1.3:8080"], healthy_only=True)


def weight():
    service, provider = f"{CLIENT}-weight", client(2)
    seen = Seen(client(0), service)
    for value in WEIGHTS:
        register(provider, service, "10.3.2.1", weight=value)
        seen.until(f"told of the weight {value}", lambda now: [i["weight"] for i in now] == [value])
    check(provider.modify_naming_instance(service, "10.3.2.1", 8080, "DEFAULT", weight=5.0), "the change answered no")
    seen.until("told of the weight 5", lambda now: [i["weight"] for i in now] == [5.0])


def subscribe():
    service, provider, other = f"{CLIENT}-subscribe", client(0), client(1)
    seen = Seen(client(2), service)
    register(provider, service, "10.3.3.1")
    seen.until_addresses("10.3.3.1:8080")
    register(provider, service, "10.3.3.1", weight=3.0)
    seen.until("told of the weight", lambda now: [i["weight"] for i in now] == [3.0])
    register(provider, service, "10.3.3.1", weight=3.0, metadata={"zone": "b"})
    seen.until("told of the metadata", lambda now: [i["metadata"] for i in now] == [{"zone": "b"}])
    register(other, service, "10.3.3.2")
    seen.until_addresses("10.3.3.1:8080", "10.3.3.2:8080")
    deregister_row(provider, service, "10.3.3.1")
    seen.until_addresses("10.3.3.2:8080")
    deregister_row(other, service, "10.3.3.2")
    seen.until_addresses()


def unsubscribe():
    service, provider = f"{CLIENT}-unsubscribe", client(0)
    consumer = client(1)
    seen, told = Seen(consumer, service), Seen(client(1), service)
    register(provider, service, "10.3.4.1")
    seen.until_addresses("10.3.4.1:8080")
    consumer.unsubscribe(service, "seen")
    calls = seen.calls
    # Two changes that another subscriber at the same node is told: the first would have arrived by then.
    for value in 2.0, 3.0:
        register(provider, service, "10.3.4.1", weight=value)
        told.until(f"told of the weight {value}", lambda now: [i["weight"] for i in now] == [value])
    check(seen.calls == calls, f"called after unsubscribing: {seen.now}")
    again = Seen(consumer, service)
    register(provider, service, "10.3.4.1", weight=4.0)
    again.until("told of the weight", lambda now: [i["weight"] for i in now] == [4.0])
    deregister_row(provider, service, "10.3.4.1")
    again.until_addresses()
    check(seen.calls == calls, f"called after unsubscribing: {seen.now}")


def deregister():
    service = f"{CLIENT}-deregister"
    register(client(0), service, "10.3.5.1")
    everywhere(service, ["10.3.5.1:8080"])
    # By a client at another node, and without the cluster.
    deregister_row(client(2), service, "10.3.5.1", cluster=None)
    everywhere(service, [])


def group():
    service, provider = f"{CLIENT}-group", client(0)
    for number, name in enumerate(["blue", "green", ODD_GROUP]):
        register(provider, service, f"10.3.8.{number}", group_name=name)
    for number, name in enumerate(["blue", "green", ODD_GROUP]):
        everywhere(service, [f"10.3.8.{number}:8080"], group_name=name)
    everywhere(service, [])
    deregister_row(provider, service, "10.3.8.0", group_name="blue")
    everywhere(service, [], group_name="blue")
    everywhere(service, ["10.3.8.1:8080"], group_name="green")


def cluster():
    service, provider = f"{CLIENT}-cluster", client(1)
    wanted = {"east": ["10.3.9.1:8080"], "east,west": ["10.3.9.1:8080", "10.3.9.2:8080"], "north": []}
    wanted[None] = wanted["east,west"]
    # A client each: it keeps what it knows by the name of the service.
    seen = {clusters: Seen(client(0), service, clusters=clusters) for clusters in wanted}
    register(provider, service, "10.3.9.1", cluster="east")
    register(provider, service, "10.3.9.2", cluster="west")
    for clusters, instances in wanted.items():
        seen[clusters].until_addresses(*instances)
        everywhere(service, instances, clusters=clusters)
    deregister_row(provider, service, "10.3.9.1", cluster="east")
    seen["east"].until_addresses()
    seen[None].until_addresses("10.3.9.2:8080")


def namespace():
    service, provider, other = f"{CLIENT}-namespace", client(0), client(0, OTHER_NAMESPACE)
    seen, other_seen = Seen(client(1), service), Seen(client(1, OTHER_NAMESPACE), service)
    register(provider, service, "10.3.10.1")
    register(other, service, "10.3.10.2")
    seen.until_addresses("10.3.10.1:8080")
    other_seen.until_addresses("10.3.10.2:8080")
    everywhere(service, ["10.3.10.1:8080"])
    everywhere(service, ["10.3.10.2:8080"], namespace=OTHER_NAMESPACE)
    deregister_row(other, service, "10.3.10.2")
    other_seen.until_addresses()
    everywhere(service, [], namespace=OTHER_NAMESPACE)
    everywhere(service, ["10.3.10.1:8080"])


def metadata():
    service = f"{CLIENT}-metadata"
    seen = Seen(client(2), service)
    register(client(1), service, "10.3.11.1", metadata=METADATA)
    seen.until("told of the metadata", lambda now: [i["metadata"] for i in now] == [METADATA])
    for (one,) in everywhere(service, ["10.3.11.1:8080"]):
        check(one["metadata"] == METADATA, one)


def names_of_dubbo():
    provider = client(2)
    for group_name in "DUBBO_GROUP", GROUP:
        for service in dubbo_names(CLIENT):
            seen = Seen(client(0), service, group_name=group_name)
            register(provider, service, "10.3.12.1", 20880, group_name=group_name, metadata={"side": "provider"})
            seen.until_addresses("10.3.12.1:20880")
            everywhere(service, ["10.3.12.1:20880"], group_name=group_name)


def hundred_instances():
    service = f"{CLIENT}-hundred"
    seen = Seen(client(2), service)
    providers = [client(number % 3) for number in range(4)]
    everyone = [(providers[n % 4], f"10.3.14.{n % 4}", 1000 + n) for n in range(100)]
    for provider, ip, port in everyone:
        register(provider, service, ip, port)
    wanted = sorted(f"{ip}:{port}" for _, ip, port in everyone)
    seen.until_addresses(*wanted)
    everywhere(service, wanted)
    for provider, ip, port in everyone:
        deregister_row(provider, service, ip, port)
    seen.until_addresses()
    everywhere(service, [])


def abrupt_death():
    services = [f"{CLIENT}-death-{number}" for number in range(2)]
    seen = [Seen(client(1), service) for service in services]
    provider = Held(*services)
    for one in seen:
        one.until_addresses("10.3.15.1:8080", within=RECONNECTED)
    provider.kill()
    for service in services:
        until_health(service, {"10.3.15.1": False})
    for one, service in zip(seen, services):
        one.until_addresses(within=GONE_AFTER + SOON)
        everywhere(service, [])


async def hold(services):
    provider = client(0)
    for service in services:
        register(provider, service, "10.3.15.1", metadata=SHORT, heartbeat_interval=1)


def no_beat_expiry():
    service = f"{CLIENT}-beats"
    beating, silent = client(0), client(1)
    register(beating, service, "10.3.16.1", metadata=SHORT, heartbeat_interval=1)
    for ip in "10.3.16.2", "10.3.16.3":
        register(silent, service, ip, metadata=SHORT)
    until_health(service, {"10.3.16.1": True, "10.3.16.2": False, "10.3.16.3": False})
    answer = silent.send_heartbeat(service, "10.3.16.3", 8080, "DEFAULT", metadata=SHORT)
    check(answer["code"] == 10200, answer)
    until_health(service, {"10.3.16.1": True, "10.3.16.2": False, "10.3.16.3": True})
    until_health(service, {"10.3.16.1": True, "10.3.16.3": False}, GONE_AFTER + SOON)
    until_health(service, {"10.3.16.1": True}, GONE_AFTER + SOON)
    # A beat of one that is gone registers it.
    answer = silent.send_heartbeat(service, "10.3.16.2", 8080, "DEFAULT", metadata=SHORT)
    check(answer["code"] == 10200, answer)
    until_health(service, {"10.3.16.1": True, "10.3.16.2": True})
    leave(beating, service, "10.3.16.1", ["10.3.16.2:8080"])


def two_publishers():
    """Nothing tells two publishers of a row apart that speak HTTP: it stays as long as one of them beats."""
    service = f"{CLIENT}-publishers"
    first, second, third = Held(service), client(1), client(2)
    everywhere(service, ["10.3.15.1:8080"], within=RECONNECTED)
    register(second, service, "10.3.15.1", metadata=SHORT, heartbeat_interval=1)
    first.kill()
    never_missing(service, "10.3.15.1:8080", GONE_AFTER + 2)
    until_health(service, {"10.3.15.1": True})
    # One that deregisters takes the row away from all; the next beat of another registers it again, as that one has it.
    register(third, service, "10.3.15.1", metadata={**SHORT, "by": "third"})
    until_metadata(service, {**SHORT, "by": "third"})
    deregister_row(third, service, "10.3.15.1")
    until_metadata(service, SHORT)
    leave(second, service, "10.3.15.1", [])
    register(second, service, "10.3.18.1", 1)
    register(third, service, "10.3.18.1", 2)
    everywhere(service, ["10.3.18.1:1", "10.3.18.1:2"])
    deregister_row(second, service, "10.3.18.1", 1)
    everywhere(service, ["10.3.18.1:2"])
    deregister_row(third, service, "10.3.18.1", 2)
    everywhere(service, [])


def until_metadata(service, wanted):
    def attempt():
        found = [[i["metadata"] for i in now] for now in lists(service)]
        check(all(now == [wanted] for now in found), f"at the nodes: {found}")

    until(f"the metadata of {service} are {wanted}", SOON, attempt)


def never_missing(service, address, seconds):
    """Checks for so long that all nodes that can be reached list this address."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        check_listed(address, served_by_the_living(service))
        time.sleep(0.1)


def redo():
    service, provider = f"{CLIENT}-redo", client()
    # A poll under way when the node is killed would end the polling of this client: seldom polls.
    seen = Seen(client(), service, poll=1)
    register(provider, service, "10.3.17.1", heartbeat_interval=1)
    seen.until_addresses("10.3.17.1:8080")

    ask(f"kill the publisher of {GROUP}@@{service}")
    register(provider, service, "10.3.17.2", heartbeat_interval=1)
    never_missing(service, "10.3.17.1:8080", GRACE)
    seen.until_addresses("10.3.17.1:8080", "10.3.17.2:8080", within=RECONNECTED)

    ask("start it again")
    everywhere(service, ["10.3.17.1:8080", "10.3.17.2:8080"], within=RECONNECTED)
    until_health(service, {"10.3.17.1": True, "10.3.17.2": True})
    register(provider, service, "10.3.17.1", weight=4.0, heartbeat_interval=1)
    seen.until("told of the weight", lambda now: [i["weight"] for i in now if i["ip"] == "10.3.17.1"] == [4.0])
    leave(provider, service, "10.3.17.1", ["10.3.17.2:8080"])
    seen.until_addresses("10.3.17.2:8080")


SCENARIOS = {
    "register": register_one,
    "select_healthy": select_healthy,
    "weight": weight,
    "subscribe": subscribe,
    "unsubscribe": unsubscribe,
    "deregister": deregister,
    "group": group,
    "cluster": cluster,
    "namespace": namespace,
    "metadata": metadata,
    "dubbo_names": names_of_dubbo,
    "hundred_instances": hundred_instances,
    "abrupt_death": abrupt_death,
    "no_beat_expiry": no_beat_expiry,
    "two_publishers": two_publishers,
}

if __name__ == "__main__":
    main(
        hold,
        SCENARIOS,
        alone={"redo": redo},
        without={
            "batch": "no call for it",
            "batch_replacement": "no call for it",
            "service_pages": "no call for it",
            "udp_push": "the client polls, and names no port",
        },
    )
