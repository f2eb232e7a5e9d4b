package fuzzy;

import static driver.Driver.RECONNECTED;
import static driver.Driver.SOON;
import static driver.Driver.ask;
import static driver.Driver.check;
import static driver.Driver.equal;
import static driver.Driver.throughout;
import static driver.Driver.until;
import static driver.Rows.row;

import driver.Driver.Scenario;
import grpc.Java2;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** The client 3.x: as 2.x, and watches of services by a pattern. */
public final class Java3 extends Java2 {
    private static final String OTHER_GROUP = "java-3-other";

    private Java3(String[] args) throws Exception {
        super("java-3", args);
    }

    public static void main(String[] args) throws Exception {
        new Java3(args).runAll();
    }

    @Override
    protected Map<String, Scenario> all() {
        var all = super.all();
        all.put("fuzzy_watch", this::fuzzyWatch);
        return all;
    }

    private void fuzzyWatch() throws Exception {
        var pattern = named("fuzzy-*");
        // More than the server tells in one message.
        var names = new ArrayList<>(IntStream.range(10, 23).mapToObj(i -> named("fuzzy-" + i)).toList());
        var provider = clients.anywhere();
        for (var name : names) {
            provider.registerInstance(name, row("10.4.22.1"));
            everywhere(name, "10.4.22.1:8080");
        }
        provider.registerInstance(names.get(0), OTHER_GROUP, row("10.4.22.1"));
        var watcher = clients.anywhere();
        watcher.registerInstance(named("watcher"), row("10.4.22.2"));
        var first = new Told();
        var keys = watcher.fuzzyWatchWithServiceKeys(pattern, GROUP, first);
        var wanted = names.stream().map(name -> "public@@" + GROUP + "@@" + name).toList();
        equal(keys.get(SOON, TimeUnit.SECONDS).getData().stream().sorted().toList(), wanted, "the keys");
        first.until(GROUP, names);
        // One more watcher of the pattern, and one of all groups.
        var second = new Told();
        watcher.fuzzyWatch(pattern, GROUP, second);
        second.until(GROUP, names);
        var ending = new Told();
        watcher.fuzzyWatch("*-fuzzy-10", "*", ending);
        ending.until(Map.of(GROUP, List.of(names.get(0)), OTHER_GROUP, List.of(names.get(0))));

        // A service comes, has a second instance, and goes.
        var other = clients.anywhere();
        other.registerInstance(named("fuzzy-30"), row("10.4.22.3"));
        names.add(named("fuzzy-30"));
        first.until(GROUP, names);
        second.until(GROUP, names);
        provider.registerInstance(named("fuzzy-30"), row("10.4.22.1"));
        other.deregisterInstance(named("fuzzy-30"), row("10.4.22.3"));
        provider.deregisterInstance(names.get(0), OTHER_GROUP, row("10.4.22.1"));
        ending.until(GROUP, names.subList(0, 1));
        provider.deregisterInstance(named("fuzzy-30"), row("10.4.22.1"));
        names.remove(named("fuzzy-30"));
        first.until(GROUP, names);
        equal(first.gone(), List.of(named("fuzzy-30")), "services that went");

        // One that ends is told nothing more, the other is.
        watcher.cancelFuzzyWatch(pattern, GROUP, second);
        var calls = second.calls();
        provider.registerInstance(named("fuzzy-31"), row("10.4.22.1"));
        names.add(named("fuzzy-31"));
        first.until(GROUP, names);
        throughout(1, () -> equal(second.calls(), calls, "calls after the end of a watch"));

        // The watcher's node goes: what changes meanwhile is told, and nothing else.
        ask("kill the publisher of " + GROUP + "@@" + named("watcher"));
        until("a service goes", RECONNECTED, () -> {
            provider.deregisterInstance(named("fuzzy-31"), row("10.4.22.1"));
            return true;
        });
        names.remove(named("fuzzy-31"));
        until("a service comes", RECONNECTED, () -> {
            other.registerInstance(named("fuzzy-32"), row("10.4.22.3"));
            return true;
        });
        names.add(named("fuzzy-32"));
        first.untilWithin(RECONNECTED, GROUP, names);
        ask("start it again");
        other.registerInstance(named("fuzzy-33"), row("10.4.22.3"));
        names.add(named("fuzzy-33"));
        first.until(GROUP, names);
        equal(first.gone(), List.of(named("fuzzy-30"), named("fuzzy-31")), "services that went");

        // A watch that has ended everywhere begins anew.
        watcher.cancelFuzzyWatch(pattern, GROUP, first);
        other.registerInstance(named("fuzzy-34"), row("10.4.22.3"));
        names.add(named("fuzzy-34"));
        everywhere(named("fuzzy-34"), "10.4.22.3:8080");
        var again = new Told();
        watcher.fuzzyWatch(pattern, GROUP, again);
        again.until(GROUP, names);
        check(!first.knows(GROUP, named("fuzzy-34")), "told after the end of the watch");
    }
}
