"""What a node serves for machines, read by parsers that others wrote: metrics in both forms, and the description of
its HTTP surface.

    formats.py SERVERS SCRATCH   main addresses separated by commas; a folder that is not used
"""

import asyncio
import json
import sys
import urllib.parse
import urllib.request

from openapi_spec_validator import validate
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from driver import SOON, check, run, until

SERVERS = sys.argv[1].split(",")
OPEN_METRICS = "application/openmetrics-text"
NAMES = ["formats", "formats.of-many:kinds"]


def fetch(server, path, method="GET", **headers):
    """Content type and text of an answer."""
    request = urllib.request.Request(f"http://{server}{path}", method=method, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as response:
        return response.headers["Content-Type"], response.read().decode()


def cause_traffic():
    """Rows with names that have to be escaped, and calls that are refused."""
    for name in NAMES:
        query = urllib.parse.urlencode({"serviceName": name, "ip": "10.0.0.9", "port": 80, "metadata": '{"名\\"字":"a\\nb"}'})
        fetch(SERVERS[0], f"/nacos/v1/ns/instance?{query}", method="POST")
    for path in ["/nacos/v1/ns/instance/list", "/nacos/v2/ns/instance?serviceName=none&ip=1.1.1.1&port=1", "/nope"]:
        try:
            fetch(SERVERS[0], path)
        except urllib.error.HTTPError as error:
            check(error.code < 500, f"{path}: {error.code}")
    for server in SERVERS:
        until(f"the rows are at {server}", SOON, lambda: has_rows(server))


def has_rows(server):
    for name in NAMES:
        _, text = fetch(server, f"/nacos/v1/ns/instance/list?serviceName={urllib.parse.quote(name)}")
        check(json.loads(text)["hosts"], f"{name} is empty")


def families(text, parse):
    """Every sample of a page by name and labels."""
    found = {}
    for family in parse.text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            check(key not in found, f"{key} is there twice")
            found[key] = (family.type, sample.value)
    return found


def check_metrics(found):
    naming = (("module", "naming"), ("name", "ipCount"))
    kind, value = found["nacos_monitor", naming]
    check(kind == "gauge" and value >= 2, f"ipCount is {value}, a {kind}")
    for way in ["grpc", "udp"]:
        kind, _ = found["rollcall_push_acked_seconds_count", (("way", way),)]
        check(kind == "histogram", f"latencies are a {kind}")
    kind, _ = found["rollcall_http_responses_4xx_total", ()]
    check(kind == "counter", f"answers are a {kind}")


def the_text_form_is_read():
    for server in SERVERS:
        for accept in ["*/*", "text/plain;version=0.0.4"]:
            kind, text = fetch(server, "/nacos/actuator/prometheus", Accept=accept)
            check(kind.startswith("text/plain;version=0.0.4"), kind)
            check_metrics(families(text, parser))


def the_open_form_is_read():
    for server in SERVERS:
        accept = f"{OPEN_METRICS};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
        kind, text = fetch(server, "/nacos/actuator/prometheus", Accept=accept)
        check(kind.startswith(f"{OPEN_METRICS}; version=1.0.0"), kind)
        check_metrics(families(text, openmetrics))


def the_description_is_valid():
    kind, text = fetch(SERVERS[0], "/nacos/openapi.json")
    check(kind == "application/json", kind)
    document = json.loads(text)
    validate(document)
    check("/v1/ns/instance" in document["paths"], "no instances")


SCENARIOS = {
    "the text form is read": the_text_form_is_read,
    "the open form is read": the_open_form_is_read,
    "the description is valid": the_description_is_valid,
}

if __name__ == "__main__":
    cause_traffic()
    sys.exit(asyncio.run(run(SCENARIOS, alone={}, without={})))
