package http;

import static driver.Driver.SOON;
import static driver.Driver.equal;
import static driver.Driver.throughout;
import static driver.Driver.until;
import static driver.Rows.QUICK;
import static driver.Rows.weighted;
import static driver.Rows.withMetadata;

import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import driver.Driver.Scenario;
import driver.Driver;
import driver.Scenarios;
import driver.Seen;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The client 1.x: HTTP v1, beats, polls, and pushes over UDP. */
public final class Java1 extends Scenarios {
    /** Seconds after which a beating instance with {@link driver.Rows#QUICK} limits would have gone without its beats. */
    private static final int EXPIRED = 8;
    /** Seconds in which a push comes; a poll comes after 10. */
    private static final int PUSHED = 3;

    private Java1(String[] args) throws Exception {
        super("java-1", args);
    }

    public static void main(String[] args) throws Exception {
        var program = new Java1(args);
        Driver.say("without batch: one instance for each request");
        Driver.say("without batch_replacement: one instance for each request");
        program.run();
    }

    @Override
    protected Map<String, Scenario> all() {
        var all = super.all();
        all.put("no_beat_expiry", this::noBeatExpiry);
        all.put("udp_push", this::udpPush);
        return all;
    }

    @Override
    protected int missed() {
        return 20;
    }

    @Override
    protected void registerAll(NamingService client, String service, List<Instance> rows) throws Exception {
        for (var row : rows) {
            client.registerInstance(service, row);
        }
    }

    @Override
    protected void deregisterAll(NamingService client, String service, List<Instance> rows) throws Exception {
        for (var row : rows) {
            client.deregisterInstance(service, row);
        }
    }

    /** This client takes another node for each request. */
    @Override
    protected NamingService beside(String node) throws Exception {
        return clients.anywhere();
    }

    /** A row belongs to all who beat it: it stays as long as one does. */
    @Override
    protected void shareRow(NamingService first, NamingService second, String service) throws Exception {
        first.registerInstance(service, withMetadata("10.4.15.1", QUICK));
        second.registerInstance(service, withMetadata("10.4.15.1", QUICK));
        everywhere(service, "10.4.15.1:8080");
        clients.end(first);
        throughout(EXPIRED, () -> state(service, Map.of("10.4.15.1", true)));
        clients.end(second);
    }

    private void noBeatExpiry() throws Exception {
        var service = named("beats");
        var seen = new Seen();
        clients.at(1).subscribe(service, seen);
        clients.at(0).registerInstance(service, withMetadata("10.4.16.2", QUICK));
        try (var provider = provider("silent", "10.4.16.1", service)) {
            everywhere(service, "10.4.16.1:8080", "10.4.16.2:8080");
            provider.signal("STOP");
            becomes(service, Map.of("10.4.16.1", false, "10.4.16.2", true));
            seen.until("an unhealthy one is told", SOON, now -> now.stream().anyMatch(row -> !row.isHealthy()));
            provider.signal("CONT");
            becomes(service, Map.of("10.4.16.1", true, "10.4.16.2", true));
            provider.signal("STOP");
            becomes(service, Map.of("10.4.16.1", false, "10.4.16.2", true));
            becomes(service, Map.of("10.4.16.2", true));
            seen.until("10.4.16.2:8080");
            // It registers again when its beat is not known.
            provider.signal("CONT");
            becomes(service, Map.of("10.4.16.1", true, "10.4.16.2", true));
        }
        becomes(service, Map.of("10.4.16.2", true));
        throughout(EXPIRED, () -> state(service, Map.of("10.4.16.2", true)));
    }

    private void becomes(String service, Map<String, Boolean> wanted) throws Exception {
        until("the health of " + service, missed(), () -> {
            state(service, wanted);
            return true;
        });
    }

    /** Which are listed at every node, and whether they are healthy. */
    private void state(String service, Map<String, Boolean> wanted) throws Exception {
        for (var observer : clients.observers()) {
            var found = new HashMap<String, Boolean>();
            asked(observer, GROUP, service).forEach(row -> found.put(row.getIp(), row.isHealthy()));
            equal(found, wanted, "health");
        }
    }

    private void udpPush() throws Exception {
        var service = named("udp");
        var seen = new Seen();
        var consumer = clients.at(1);
        var provider = clients.at(0);
        provider.registerInstance(service, weighted("10.4.17.1", 1));
        everywhere(service, "10.4.17.1:8080");
        consumer.subscribe(service, seen);
        seen.until("10.4.17.1:8080");
        // More of them than polls could bring.
        for (var weight = 2; weight < 8; weight++) {
            var wanted = weight;
            provider.registerInstance(service, weighted("10.4.17.1", weight));
            seen.until("weight " + weight, PUSHED, now -> now.get(0).getWeight() == wanted);
        }
    }
}
