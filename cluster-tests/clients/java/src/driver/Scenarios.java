package driver;

import static driver.Driver.RECONNECTED;
import static driver.Driver.SOON;
import static driver.Driver.ask;
import static driver.Driver.check;
import static driver.Driver.equal;
import static driver.Driver.throughout;
import static driver.Driver.until;
import static driver.Rows.addresses;
import static driver.Rows.inCluster;
import static driver.Rows.row;
import static driver.Rows.sorted;
import static driver.Rows.weighted;
import static driver.Rows.withMetadata;

import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import driver.Driver.Scenario;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/** What an application does with every generation of the Java client. */
public abstract class Scenarios {
    protected static final String GROUP = "DEFAULT_GROUP";
    private static final String ODD_GROUP = "G_1-a.b:c";
    /** Seconds after which the rows of a node that is gone would be dropped. */
    private static final int ORPHANED = 20;
    private static final Map<String, String> METADATA = Map.of(
        "plain", "value",
        "名字", "服务 🦀 \uD83D\uDE80",
        "quote\"d", "back\\slash, 'single' and \"double\"",
        "json", "{\"a\":[1,\"x\"],\"b\":null}",
        "línea", "a\nb\r\nc\td",
        "separators", "a=b&c=d,e;f|g#h@@i%20+j/k?l:m",
        "empty", "");

    protected final Clients clients;
    private final String program;
    private final Path scratch;

    /** The program's name; the nodes' addresses and a folder to write to, which are its arguments. */
    protected Scenarios(String program, String[] args) throws Exception {
        this.program = program;
        scratch = Path.of(args[1]);
        Driver.keepIn(scratch.resolve("client"));
        clients = new Clients(args[0]);
    }

    /** The scenarios of all generations; the others add theirs. */
    protected Map<String, Scenario> all() {
        var all = new LinkedHashMap<String, Scenario>();
all.put("register", this::register);
        all.put("select_healthy", this::selectHealthy);
        all.put("weight", this::weight);
        all.put("subscribe", this::subscribe);
        all.put("unsubscribe", this::unsubscribe);
        all.put("deregister", this::deregister);
        all.put("group", this::group);
        all.put("cluster", this::cluster);
        all.put("namespace", this::namespace);
        all.put("metadata", this::metadata);
        all.put("dubbo_names", this::dubboNames);
        all.put("service_pages", this::servicePages);
        all.put("hundred_instances", this::hundredInstances);
        all.put("abrupt_death", this::abruptDeath);
        all.put("redo", this::redo);
        all.put("two_publishers", this::twoPublishers);
        return all;
    }

    /** Runs all of them and ends the process. */
    protected final void run() {
        Driver.run(all(), clients::close);
    }

    /** Seconds in which the end of a process must be known everywhere. */
    protected abstract int missed();

    protected abstract void registerAll(NamingService client, String service, List<Instance> rows) throws Exception;

    protected abstract void deregisterAll(NamingService client, String service, List<Instance> rows) throws Exception;

    /** A client that uses this node now and knows the others, as far as a client stays at a node. */
    protected abstract NamingService beside(String node) throws Exception;

    /** Two clients hold the same row, by a client each; one ends, then the other. */
    protected abstract void shareRow(NamingService first, NamingService second, String service) throws Exception;

    protected final String named(String name) {
        return program + "-" + name;
    }

    protected final Provider provider(String name, String ip, String... services) throws Exception {
        return new Provider(clients.servers(), scratch.resolve(name), ip, services);
    }

    /** The list as the client's node has it now. */
    protected static List<Instance> asked(NamingService client, String group, String service, String... inClusters)
        throws Exception {
        return client.getAllInstances(service, group, List.of(inClusters), false);
    }

    protected final void everywhere(String service, String... wanted) throws Exception {
        everywhereWithin(SOON, GROUP, service, wanted);
    }

    /** Waits until every node lists exactly these addresses. */
    protected final void everywhereWithin(int seconds, String group, String service, String... wanted)
        throws Exception {
        for (var observer : clients.observers()) {
            until("a node's list of " + service + " in " + group, seconds, () -> {
                equal(addresses(asked(observer, group, service)), sorted(wanted), "the list");
                return true;
            });
        }
    }

    private void register() throws Exception {
        for (var node = 0; node < clients.observers().size(); node++) {
            var service = named("register-" + node);
            var ip = "10.4.0." + node;
            var provider = clients.at(node);
            provider.registerInstance(service, ip, 8080);
            everywhere(service, ip + ":8080");
            for (var consumer : clients.observers()) {
                var one = asked(consumer, GROUP, service).get(0);
                equal(one.getIp(), ip, "ip");
                equal(one.getPort(), 8080, "port");
                equal(one.getWeight(), 1.0, "weight");
                check(one.isHealthy() && one.isEnabled() && one.isEphemeral(), "it is %s", one);
                equal(one.getClusterName(), "DEFAULT", "cluster");
                equal(one.getServiceName(), GROUP + "@@" + service, "service");
                equal(one.getInstanceId(), ip + "#8080#DEFAULT#" + GROUP + "@@" + service, "instance id");
            }
            var cached = clients.at((node + 1) % clients.observers().size());
            equal(addresses(cached.getAllInstances(service)), List.of(ip + ":8080"), "a cached list");
        }
    }

    private void selectHealthy() throws Exception {
        var service = named("select");
        // Beats would make it healthy.
        var sick = withMetadata("10.4.1.2", Map.of(
            "preserved.heart.beat.interval", "60000",
            "preserved.heart.beat.timeout", "120000",
            "preserved.ip.delete.timeout", "180000"));
        sick.setHealthy(false);
        var disabled = row("10.4.1.3");
        disabled.setEnabled(false);
        var rows = List.of(row("10.4.1.1"), sick, disabled);
        for (var row : rows) {
            clients.at(rows.indexOf(row)).registerInstance(service, row);
        }
        everywhere(service, "10.4.1.1:8080", "10.4.1.2:8080");
        for (var consumer : clients.observers()) {
            var healthy = consumer.selectInstances(service, GROUP, List.of(), true, false);
            equal(addresses(healthy), List.of("10.4.1.1:8080"), "healthy ones");
            var unhealthy = consumer.selectInstances(service, GROUP, List.of(), false, false);
            equal(addresses(unhealthy), List.of("10.4.1.2:8080"), "unhealthy ones");
            for (var i = 0; i < 10; i++) {
                var one = consumer.selectOneHealthyInstance(service, GROUP, List.of(), false);
                equal(one.getIp(), "10.4.1.1", "one that is selected");
            }
        }
        var cached = clients.at(0).selectInstances(service, true);
        equal(addresses(cached), List.of("10.4.1.1:8080"), "healthy ones of a cached list");
    }

    private void weight() throws Exception {
        var service = named("weight");
        var changing = clients.at(1);
        clients.at(0).registerInstance(service, weighted("10.4.2.1", 0));
        changing.registerInstance(service, weighted("10.4.2.2", 0.25));
        clients.at(2).registerInstance(service, weighted("10.4.2.3", 99.5));
        weights(service, Map.of("10.4.2.1", 0.0, "10.4.2.2", 0.25, "10.4.2.3", 99.5));
        for (var consumer : clients.observers()) {
            var selected = consumer.selectInstances(service, GROUP, List.of(), true, false);
            equal(addresses(selected), List.of("10.4.2.2:8080", "10.4.2.3:8080"), "those with a weight");
        }
        changing.registerInstance(service, weighted("10.4.2.2", 7));
        weights(service, Map.of("10.4.2.1", 0.0, "10.4.2.2", 7.0, "10.4.2.3", 99.5));
    }

    private void weights(String service, Map<String, Double> wanted) throws Exception {
        for (var consumer : clients.observers()) {
            until("the weights", SOON, () -> {
                var found = new HashMap<String, Double>();
                asked(consumer, GROUP, service).forEach(row -> found.put(row.getIp(), row.getWeight()));
                equal(found, wanted, "weights");
                return true;
            });
        }
    }

    private void subscribe() throws Exception {
        var service = named("subscribe");
        var provider = clients.at(0);
        var consumer = clients.at(1);
        var other = clients.at(2);
        var seen = new Seen();
        consumer.subscribe(service, seen);
        provider.registerInstance(service, row("10.4.3.1"));
        seen.until("10.4.3.1:8080");
        var changed = weighted("10.4.3.1", 3);
        changed.setMetadata(Map.of("version", "2"));
        provider.registerInstance(service, changed);
        seen.until("the change is told", SOON, now -> now.size() == 1 && now.get(0).getWeight() == 3
            && now.get(0).getMetadata().equals(Map.of("version", "2")));
        other.registerInstance(service, row("10.4.3.2"));
        seen.until("10.4.3.1:8080", "10.4.3.2:8080");
        equal(addresses(consumer.getAllInstances(service)), addresses(seen.now()), "the cached list");
        provider.deregisterInstance(service, row("10.4.3.1"));
        seen.until("10.4.3.2:8080");
        other.deregisterInstance(service, row("10.4.3.2"));
        seen.until();
        everywhere(service);
    }

    private void unsubscribe() throws Exception {
        var service = named("unsubscribe");
        var consumer = clients.at(0);
        var seen = new Seen();
        var witness = new Seen();
        consumer.subscribe(service, seen);
        clients.at(1).subscribe(service, witness);
        clients.at(2).registerInstance(service, row("10.4.4.1"));
        seen.until("10.4.4.1:8080");
        consumer.unsubscribe(service, seen);
        var calls = seen.calls();
        clients.at(0).registerInstance(service, row("10.4.4.2"));
        witness.until("10.4.4.1:8080", "10.4.4.2:8080");
        throughout(1, () -> equal(seen.calls(), calls, "calls after unsubscribing"));
        consumer.subscribe(service, seen);
        clients.at(1).registerInstance(service, row("10.4.4.3"));
        seen.until("10.4.4.1:8080", "10.4.4.2:8080", "10.4.4.3:8080");
    }

    private void deregister() throws Exception {
        var service = named("deregister");
        var provider = clients.at(0);
        var seen = new Seen();
        clients.at(1).subscribe(service, seen);
        provider.registerInstance(service, row("10.4.5.1"));
        everywhere(service, "10.4.5.1:8080");
        seen.until("10.4.5.1:8080");
        provider.deregisterInstance(service, row("10.4.5.1"));
        equal(asked(clients.observers().get(0), GROUP, service), List.of(), "the list of the same node");
        everywhereWithin(2, GROUP, service);
        seen.until();
    }

    private void group() throws Exception {
        var service = named("group");
        var provider = clients.at(0);
        var seen = new Seen();
        clients.at(1).subscribe(service, ODD_GROUP, seen);
        provider.registerInstance(service, "blue", row("10.4.6.1"));
        provider.registerInstance(service, ODD_GROUP, row("10.4.6.2"));
        everywhereWithin(SOON, "blue", service, "10.4.6.1:8080");
        everywhereWithin(SOON, ODD_GROUP, service, "10.4.6.2:8080");
        everywhere(service);
        seen.until("10.4.6.2:8080");
        provider.deregisterInstance(service, "blue", row("10.4.6.1"));
        everywhereWithin(SOON, "blue", service);
        everywhereWithin(SOON, ODD_GROUP, service, "10.4.6.2:8080");
        equal(seen.calls(), 1, "calls for one group");
    }

    private void cluster() throws Exception {
        var service = named("cluster");
        var wanted = Map.of(
            List.of("east"), List.of("10.4.7.1:8080"),
            List.of("east", "west"), List.of("10.4.7.1:8080", "10.4.7.2:8080"),
            List.<String>of(), List.of("10.4.7.1:8080", "10.4.7.2:8080"));
        var seen = new HashMap<List<String>, Seen>();
        // A client each: a node keeps one filter for a client and a service, which pushes over UDP follow.
        for (var names : wanted.keySet()) {
            seen.put(names, new Seen());
            clients.at(2).subscribe(service, GROUP, names, seen.get(names));
        }
        var none = new Seen();
        clients.at(2).subscribe(service, GROUP, List.of("north"), none);
        clients.at(0).registerInstance(service, inCluster("10.4.7.1", "east"));
        clients.at(1).registerInstance(service, inCluster("10.4.7.2", "west"));
        everywhere(service, "10.4.7.1:8080", "10.4.7.2:8080");
        for (var names : wanted.keySet()) {
            for (var observer : clients.observers()) {
                var found = asked(observer, GROUP, service, names.toArray(String[]::new));
                equal(addresses(found), wanted.get(names), "the list of " + names);
            }
            seen.get(names).until(wanted.get(names).toArray(String[]::new));
        }
        for (var observer : clients.observers()) {
            equal(asked(observer, GROUP, service, "north"), List.of(), "the list of a cluster that is empty");
            equal(asked(observer, GROUP, service, "west").get(0).getClusterName(), "west", "cluster");
        }
        clients.at(1).registerInstance(service, inCluster("10.4.7.3", "east"));
        seen.get(List.of("east")).until("10.4.7.1:8080", "10.4.7.3:8080");
        equal(none.now(), List.of(), "what a subscriber of an empty cluster was told");
    }

    private void namespace() throws Exception {
        var service = named("namespace");
        var namespace = named("space");
        var provider = clients.at(0, namespace);
        var consumer = clients.at(1, namespace);
        var seen = new Seen();
        consumer.subscribe(service, seen);
        clients.at(2).registerInstance(service, row("10.4.8.1"));
        provider.registerInstance(service, row("10.4.8.2"));
        seen.until("10.4.8.2:8080");
        everywhere(service, "10.4.8.1:8080");
        equal(addresses(asked(consumer, GROUP, service)), List.of("10.4.8.2:8080"), "the list in the namespace");
        equal(consumer.getServicesOfServer(1, 10).getData(), List.of(service), "the services of the namespace");
        provider.deregisterInstance(service, row("10.4.8.2"));
        seen.until();
        equal(asked(consumer, GROUP, service), List.of(), "the list in the namespace");
        everywhere(service, "10.4.8.1:8080");
    }

    private void metadata() throws Exception {
        var service = named("metadata");
        var seen = new Seen();
        clients.at(1).subscribe(service, seen);
        clients.at(0).registerInstance(service, withMetadata("10.4.9.1", METADATA));
        everywhere(service, "10.4.9.1:8080");
        for (var observer : clients.observers()) {
            equal(asked(observer, GROUP, service).get(0).getMetadata(), METADATA, "metadata");
        }
        seen.until("10.4.9.1:8080");
        equal(seen.now().get(0).getMetadata(), METADATA, "metadata that are told");
    }

    private void dubboNames() throws Exception {
        var names = Map.of(
            "providers:com.example." + program + ".Api:1.0.0:", "DUBBO_GROUP",
            "providers:com.example." + program + ".Api:1.0.0:group", GROUP);
        for (var name : names.entrySet()) {
            var service = name.getKey();
            var group = name.getValue();
            var seen = new Seen();
            var consumer = clients.at(2);
            consumer.subscribe(service, group, seen);
            var row = row("10.4.10.1", 20880);
            row.setMetadata(Map.of("side", "provider", "methods", "a,b", "path", "com.example.Api"));
            var provider = clients.at(0);
            provider.registerInstance(service, group, row);
            seen.until("10.4.10.1:20880");
            everywhereWithin(SOON, group, service, "10.4.10.1:20880");
            var listed = consumer.getServicesOfServer(1, 1000, group).getData();
            check(listed.contains(service), "%s is not in %s", service, listed);
            provider.deregisterInstance(service, group, row);
            seen.until();
        }
    }

    private void servicePages() throws Exception {
        var group = named("pages");
        var names = IntStream.range(0, 7).mapToObj(i -> named("page-" + i)).toList();
        var provider = clients.at(0);
        for (var name : names) {
            provider.registerInstance(name, group, row("10.4.11.1"));
        }
        for (var consumer : clients.observers()) {
            until("all are counted", SOON, () -> {
                equal(consumer.getServicesOfServer(1, 3, group).getCount(), 7, "count");
                return true;
            });
            var listed = new ArrayList<String>();
            for (var size : List.of(3, 3, 1, 0)) {
                var page = consumer.getServicesOfServer(listed.size() / 3 + (size == 0 ? 2 : 1), 3, group);
                equal(page.getCount(), 7, "count");
                equal(page.getData().size(), size, "size of a page");
                listed.addAll(page.getData());
            }
            equal(listed.stream().sorted().toList(), names, "the names");
        }
    }

    private void hundredInstances() throws Exception {
        var service = named("hundred");
        var seen = new Seen();
        clients.at(1).subscribe(service, seen);
        var rows = IntStream.range(0, 100).mapToObj(i -> row("10.4.12." + i, 9000 + i)).toList();
        var providers = List.of(clients.at(0), clients.at(2));
        registerAll(providers.get(0), service, rows.subList(0, 50));
        registerAll(providers.get(1), service, rows.subList(50, 100));
        var all = addresses(rows).toArray(String[]::new);
        everywhere(service, all);
        seen.until(all);
        deregisterAll(providers.get(0), service, rows.subList(0, 50));
        deregisterAll(providers.get(1), service, rows.subList(50, 100));
        everywhere(service);
        seen.until();
    }

    private void abruptDeath() throws Exception {
        var first = named("death-1");
        var second = named("death-2");
        var seen = new Seen();
        clients.at(1).subscribe(first, seen);
        clients.at(0).registerInstance(first, row("10.4.13.2"));
        try (var provider = provider("killed", "10.4.13.1", first, second)) {
            seen.until("10.4.13.1:8080", "10.4.13.2:8080");
            everywhere(first, "10.4.13.1:8080", "10.4.13.2:8080");
            everywhere(second, "10.4.13.1:8080");
            provider.signal("KILL");
        }
        seen.untilWithin(missed(), "10.4.13.2:8080");
        everywhere(first, "10.4.13.2:8080");
        everywhere(second);
    }

    private void redo() throws Exception {
        var service = named("redo");
        var provider = clients.anywhere();
        provider.registerInstance(service, row("10.4.14.1"));
        everywhere(service, "10.4.14.1:8080");
        var node = clients.publisher(0, GROUP, service);
        var consumer = beside(node);
        var seen = new Seen();
        consumer.subscribe(service, seen);
        seen.until("10.4.14.1:8080");
        var others = new ArrayList<>(clients.observers());
        others.remove(clients.indexOf(node));
        try (var watch = new Watch(() -> {
            for (var observer : others) {
                var now = addresses(observer.selectInstances(service, GROUP, List.of(), true, false));
                check(now.contains("10.4.14.1:8080"), "the list lacks a live instance: %s", now);
            }
        })) {
            ask("kill the publisher of " + GROUP + "@@" + service);
            var late = clients.anywhere();
            late.registerInstance(service, row("10.4.14.2"));
            seen.untilWithin(RECONNECTED, "10.4.14.1:8080", "10.4.14.2:8080");
            throughout(ORPHANED, watch::check);
            ask("start it again");
            everywhereWithin(RECONNECTED, GROUP, service, "10.4.14.1:8080", "10.4.14.2:8080");
            provider.registerInstance(service, weighted("10.4.14.1", 5));
            seen.until("a change is told", SOON, now -> now.stream().anyMatch(row -> row.getWeight() == 5));
            watch.check();
        }
        provider.deregisterInstance(service, row("10.4.14.1"));
        seen.until("10.4.14.2:8080");
        everywhere(service, "10.4.14.2:8080");
    }

    private void twoPublishers() throws Exception {
        var shared = named("shared");
        shareRow(clients.at(0), clients.at(1), shared);
        everywhereWithin(missed(), GROUP, shared);

        var service = named("two");
        var first = clients.at(0);
        var second = clients.at(1);
        first.registerInstance(service, row("10.4.15.2"));
        second.registerInstance(service, row("10.4.15.3"));
        everywhere(service, "10.4.15.2:8080", "10.4.15.3:8080");
        first.deregisterInstance(service, row("10.4.15.2"));
        everywhere(service, "10.4.15.3:8080");
        throughout(1, () -> everywhere(service, "10.4.15.3:8080"));
        second.deregisterInstance(service, row("10.4.15.3"));
        everywhere(service);
    }
}
