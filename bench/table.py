#!/usr/bin/env python3
"""Turns the results of scripts/bench.sh into a table in Markdown.

    bench/table.py RESULTS.jsonl
"""

import json
import os
import platform
import sys
from datetime import date


def machine():
    model = "unknown processor"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            model = next((l.split(":", 1)[1].strip() for l in info if l.startswith("model name")), model)
    except OSError:
        pass
    return f"{date.today()}, {os.cpu_count()} cores ({model}), {platform.system()} {platform.release()}"


def rows(path):
    """(label, command, row) of each measurement, in order."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            result = json.loads(line)
            for row in result["rows"]:
                yield result["label"], result["cmd"], row


def key(command, row, seen):
    """What a row measures; the number of the round makes it unique."""
    name = row["step"] + (f" {row['size']}" if "size" in row else "")
    name = f"{command}: {name}"
    seen[name] = seen.get(name, 0) + 1
    return f"{name} #{seen[name]}"


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


NAMES = {
    "deregister: register #1": "gRPC register, first {ok:,}",
    "deregister: deregister #1": "gRPC deregister",
    "deregister: register #2": "gRPC register, second round",
    "deregister: deregister #2": "gRPC deregister, second round",
    "query-grpc: query-grpc 1 #1": "gRPC query, 1 host",
    "query-grpc: query-grpc 10 #1": "gRPC query, 10 hosts",
    "query-grpc: query-grpc 100 #1": "gRPC query, 100 hosts",
    "query-grpc: query-grpc 1000 #1": "gRPC query, 1,000 hosts",
    "query-http: query-http 1 #1": "HTTP list, 1 host",
    "query-http: query-http 10 #1": "HTTP list, 10 hosts",
    "query-http: query-http 100 #1": "HTTP list, 100 hosts",
    "query-http: query-http 1000 #1": "HTTP list, 1,000 hosts",
    "http-beat: http-register #1": "HTTP register",
    "http-beat: http-beat #1": "HTTP light beat",
    "push: push #1": "change to push, 100 subscribers x 10 hosts",
    "push: push #2": "change to push, 1,000 subscribers x 100 hosts",
}


def main(path):
    found = {"rollcall": {}, "roof": {}}
    seen = {"rollcall": {}, "roof": {}}
    held = []
    for label, command, row in rows(path):
        if label not in found:
            continue
        if command == "hold":
            held.append(row)
            continue
        found[label][key(command, row, seen[label])] = row
    ours, roof = found["rollcall"], found["roof"]

    print(f"Measured on {machine()}; load and server share the cores.\n")
    rates = [(k, r) for k, r in ours.items() if "per_s" in r]
    if rates:
        print("| measurement | /s | server CPU us each | p50 ms | p99 ms | roof /s | roof CPU us | ratio of rates |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in rates:
        top = roof.get(name, {})
        ratio = row["per_s"] / top["per_s"] if top.get("per_s") else None
        bad = row.get("errors", 0) + row.get("wrong", 0)
        note = f" ({bad} errors)" if bad else ""
        print(
            f"| {NAMES.get(name, name).format(**row)}{note} | {number(row['per_s'])} | {number(row.get('server_cpu_us_per_op'), 1)} | "
            f"{number(row.get('p50_ms'), 2)} | {number(row.get('p99_ms'), 2)} | {number(top.get('per_s'))} | "
            f"{number(top.get('server_cpu_us_per_op'), 1)} | {number(ratio, 2)} |"
        )
    pushes = [(k, r) for k, r in ours.items() if k.startswith("push")]
    if pushes:
        print("\n| measurement | p50 ms | p99 ms | last subscriber p50 ms | last p99 ms | missed | roof p50 ms | roof p99 ms |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in pushes:
        top = roof.get(name, {})
        print(
            f"| {NAMES.get(name, name)} | {number(row.get('p50_ms'), 2)} | {number(row.get('p99_ms'), 2)} | "
            f"{number(row.get('all_p50_ms'), 2)} | {number(row.get('all_p99_ms'), 2)} | {number(row.get('missed'))} | "
            f"{number(top.get('p50_ms'), 2)} | {number(top.get('p99_ms'), 2)} |"
        )
    for row in held:
        if row["step"] == "hold":
            print("\n| memory, idle cost | value |\n| --- | --- |")
            print(f"| instances held | {number(row['instances'])} |")
            print(f"| resident before, connected, registered MB | {number(row['rss_before_mb'], 1)}, "
                  f"{number(row['rss_connected_mb'], 1)}, {number(row['rss_registered_mb'], 1)} |")
            print(f"| bytes each instance | {number(row['bytes_per_instance'])} |")
            print(f"| bytes each connection | {number(row['bytes_per_conn'])} |")
            print(f"| idle CPU, % of a core | {number(row['idle_cpu_pct'], 2)} |")


if __name__ == "__main__":
    main(sys.argv[1])
