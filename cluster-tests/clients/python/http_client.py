"""What an application does with the official Python client of the 1.x generation, which speaks HTTP v1.

    http_client.py SERVERS SCRATCH   main addresses separated by commas; a folder for the client's logs
"""

import os
import sys
import threading
import time

import nacos

from driver import RECONNECTED, SOON, UNICODE, ask, check, run, until

SERVERS, SCRATCH = sys.argv[1].split(","), sys.argv[2]
GROUP = "DEFAULT_GROUP"


def client(first=0):
    """A client that begins with this node and goes on to the next when it fails."""
    servers = SERVERS[first:] + SERVERS[:first]
    return nacos.NacosClient(",".join(servers), namespace="public", logDir=os.path.join(SCRATCH, "log"))


def hosts(naming, service, **more):
    return naming.list_naming_instance(service, **more)["hosts"]


def addresses(naming, service, wanted, within=SOON, **more):
    def attempt():
        now = sorted(f"{h['ip']}:{h['port']}" for h in hosts(naming, service, **more))
        check(now == wanted, f"it is {now}")

    until(f"{service} is {wanted}", within, attempt)


def everywhere(service, wanted, **more):
    for node in range(len(SERVERS)):
        addresses(client(node), service, wanted, **more)


def register_query_select():
    for node in range(len(SERVERS)):
        service = f"pyh-query-{node}"
        check(client(node).add_naming_instance(service, "10.3.0.1", 8080), "registering answered no")
        everywhere(service, ["10.3.0.1:8080"])
        answer = client(node).list_naming_instance(service)
        check(answer["name"] == f"DEFAULT_GROUP@@{service}" and answer["groupName"] == GROUP, answer)
        (one,) = answer["hosts"]
        check(one["healthy"] and one["enabled"] and one["ephemeral"] and one["weight"] == 1.0, one)
        check(one["clusterName"] == "DEFAULT" or one["clusterName"] == "None", one)
        check(len(hosts(client(node), service, healthy_only=True)) == 1, "no healthy one")


def detail_and_update():
    naming = client()
    naming.add_naming_instance("pyh-detail", "10.3.1.1", 8080, cluster_name="c1", weight=2.0, metadata={"a": "1"})
    everywhere("pyh-detail", ["10.3.1.1:8080"])
    for node in range(len(SERVERS)):
        one = client(node).get_naming_instance("pyh-detail", "10.3.1.1", 8080, cluster_name="c1")
        check(one["weight"] == 2.0 and one["metadata"] == {"a": "1"} and one["clusterName"] == "c1", one)
    check(client(1).modify_naming_instance("pyh-detail", "10.3.1.1", 8080, cluster_name="c1", weight=5.0), "no")

    def attempt():
        for node in range(len(SERVERS)):
            one = client(node).get_naming_instance("pyh-detail", "10.3.1.1", 8080, cluster_name="c1")
            check(one["weight"] == 5.0, one)

    until("the weight is changed everywhere", SOON, attempt)


def subscribe():
    naming, provider = client(), client(1)
    events = []
    listener = nacos.listener.SubscribeListener(fn=lambda event, i: events.append((event, i.instance)), listener_name="l")
    naming.subscribe(listener, 0.2, "pyh-watch")
    try:
        time.sleep(1)
        provider.add_naming_instance("pyh-watch", "10.3.2.1", 8080, cluster_name="DEFAULT")

        def seen(kind, weight=None):
            found = [i for event, i in events if event == kind and i["ip"] == "10.3.2.1"]
            check(found and weight in (None, found[-1]["weight"]), f"events {events}")

        until("the instance is notified", SOON, lambda: seen(nacos.listener.Event.ADDED))
        provider.add_naming_instance("pyh-watch", "10.3.2.1", 8080, cluster_name="DEFAULT", weight=3.0)
        until("the change is notified", SOON, lambda: seen(nacos.listener.Event.MODIFIED, 3.0))
        provider.remove_naming_instance("pyh-watch", "10.3.2.1", 8080, cluster_name="DEFAULT")
        until("the removal is notified", SOON, lambda: seen(nacos.listener.Event.DELETED))
    finally:
        naming.stop_subscribe()


def deregister():
    client(0).add_naming_instance("pyh-leave", "10.3.3.1", 8080, cluster_name="DEFAULT")
    everywhere("pyh-leave", ["10.3.3.1:8080"])
    check(client(2).remove_naming_instance("pyh-leave", "10.3.3.1", 8080), "deregistering answered no")
    everywhere("pyh-leave", [])


def groups():
    client().add_naming_instance("pyh-group", "10.3.4.1", 8080, group_name="blue")
    client().add_naming_instance("pyh-group", "10.3.4.2", 8080, group_name="green")
    everywhere("pyh-group", ["10.3.4.1:8080"], group_name="blue")
    everywhere("pyh-group", ["10.3.4.2:8080"], group_name="green")
    everywhere("pyh-group", [])


def clusters():
    client().add_naming_instance("pyh-clusters", "10.3.5.1", 8080, cluster_name="east")
    client().add_naming_instance("pyh-clusters", "10.3.5.2", 8080, cluster_name="west")
    everywhere("pyh-clusters", ["10.3.5.1:8080", "10.3.5.2:8080"])
    everywhere("pyh-clusters", ["10.3.5.1:8080"], clusters="east")
    everywhere("pyh-clusters", [], clusters="north")


def metadata():
    client().add_naming_instance("pyh-metadata", "10.3.6.1", 8080, weight=2.5, metadata=UNICODE)
    everywhere("pyh-metadata", ["10.3.6.1:8080"])
    for node in range(len(SERVERS)):
        (one,) = hosts(client(node), "pyh-metadata")
        check(one["metadata"] == UNICODE and one["weight"] == 2.5, one)


def beats():
    """An instance that beats stays; one that does not turns unhealthy, then goes, on every node."""
    short = {
        "preserved.heart.beat.interval": "1000",
        "preserved.heart.beat.timeout": "3000",
        "preserved.ip.delete.timeout": "6000",
    }
    naming = client()
    naming.add_naming_instance(
        "pyh-beats", "10.3.7.1", 8080, cluster_name="DEFAULT", metadata=short, heartbeat_interval=1
    )
    client(1).add_naming_instance("pyh-beats", "10.3.7.2", 8080, cluster_name="DEFAULT", metadata=short)
    everywhere("pyh-beats", ["10.3.7.1:8080", "10.3.7.2:8080"])

    def unhealthy():
        for node in range(len(SERVERS)):
            state = {h["ip"]: h["healthy"] for h in hosts(client(node), "pyh-beats")}
            check(state == {"10.3.7.1": True, "10.3.7.2": False}, state)

    until("the silent one is unhealthy", SOON, unhealthy)
    everywhere("pyh-beats", ["10.3.7.1:8080"])
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        for node in range(len(SERVERS)):
            state = {h["ip"]: h["healthy"] for h in hosts(client(node), "pyh-beats")}
            check(state == {"10.3.7.1": True}, f"the beating one: {state}")
        time.sleep(0.2)
    naming.remove_naming_instance("pyh-beats", "10.3.7.1", 8080, cluster_name="DEFAULT")
    answer = client(2).send_heartbeat("pyh-beats", "10.3.7.9", 8080, cluster_name="DEFAULT")
    check(answer["code"] == 10200 and answer["clientBeatInterval"] == 5000, answer)
    everywhere("pyh-beats", ["10.3.7.9:8080"])


def restart():
    """The instance of a beating client survives the node it talks to, and the owner of the service."""
    naming = client()
    check(
        naming.add_naming_instance("pyh-restart", "10.3.8.1", 8080, cluster_name="DEFAULT", heartbeat_interval=1),
        "registering answered no",
    )
    everywhere("pyh-restart", ["10.3.8.1:8080"])
    ask(f"kill the publisher of {GROUP}@@pyh-restart")
    check(naming.add_naming_instance("pyh-restart", "10.3.8.2", 8080, cluster_name="DEFAULT", heartbeat_interval=1), "no")
    # Each of these clients goes on to a node that answers.
    everywhere("pyh-restart", ["10.3.8.1:8080", "10.3.8.2:8080"])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        now = sorted(h["ip"] for h in hosts(naming, "pyh-restart", healthy_only=True))
        check(now == ["10.3.8.1", "10.3.8.2"], f"the list lacks a live instance: {now}")
        time.sleep(0.1)
    ask("start it again")
    everywhere("pyh-restart", ["10.3.8.1:8080", "10.3.8.2:8080"], within=RECONNECTED)
    check(naming.remove_naming_instance("pyh-restart", "10.3.8.1", 8080, cluster_name="DEFAULT"), "no")
    everywhere("pyh-restart", ["10.3.8.2:8080"])


SCENARIOS = {
    "register, query, select": register_query_select,
    "detail and update": detail_and_update,
    "subscribe: change and removal": subscribe,
    "deregister": deregister,
    "groups are apart": groups,
    "clusters": clusters,
    "metadata with Unicode": metadata,
    "beats": beats,
    "restart of the node that has the service": restart,
}

if __name__ == "__main__":
    # A scenario that hangs ends the program, and with it the test.
    limit = threading.Timer(300, lambda: (print("FAILED: not done within 300 s", flush=True), os._exit(1)))
    limit.daemon = True
    limit.start()
    code = run(SCENARIOS)
    sys.stdout.flush()
    os._exit(code)
