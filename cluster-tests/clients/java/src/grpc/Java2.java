package grpc;

import static driver.Driver.SOON;
import static driver.Driver.equal;
import static driver.Driver.throughout;
import static driver.Driver.until;
import static driver.Rows.addresses;
import static driver.Rows.row;
import static driver.Rows.weighted;

import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import driver.Driver;
import driver.Driver.Scenario;
import driver.Scenarios;
import driver.Seen;
import java.util.List;
import java.util.Map;

/** The clients 2.x and 3.x: gRPC, one connection for all that a client holds, batches. */
public class Java2 extends Scenarios {
    /** Clients that are made to find one at a certain of three nodes. */
    private static final int TRIES = 30;

    protected Java2(String program, String[] args) throws Exception {
        super(program, args);
    }

    public static void main(String[] args) throws Exception {
        new Java2("java-2", args).runAll();
    }

    protected final void runAll() {
        Driver.say("without no_beat_expiry: the connection is the beat");
        Driver.say("without udp_push: pushes come over the connection");
        run();
    }

    @Override
    protected Map<String, Scenario> all() {
        var all = super.all();
        all.put("batch", this::batch);
        all.put("batch_replacement", this::batchReplacement);
        return all;
    }

    @Override
    protected int missed() {
        return SOON;
    }

    @Override
    protected void registerAll(NamingService client, String service, List<Instance> rows) throws Exception {
        client.batchRegisterInstance(service, GROUP, rows);
    }

    @Override
    protected void deregisterAll(NamingService client, String service, List<Instance> rows) throws Exception {
        client.batchDeregisterInstance(service, GROUP, rows);
    }

    @Override
    protected NamingService beside(String node) throws Exception {
        for (var i = 0; i < TRIES; i++) {
            var client = clients.anywhere();
            var mark = named("mark-" + i);
            client.registerInstance(mark, row("10.4.14.9"));
            var found = until("the node of a client is known", SOON, () -> clients.publisher(0, GROUP, mark));
            if (found.equals(node)) {
                return client;
            }
        }
        throw new AssertionError("none of " + TRIES + " clients is connected to " + node);
    }

    @Override
    protected void shareRow(NamingService first, NamingService second, String service) throws Exception {
        first.registerInstance(service, row("10.4.15.1"));
        second.registerInstance(service, row("10.4.15.1"));
        everywhere(service, "10.4.15.1:8080");
        first.deregisterInstance(service, row("10.4.15.1"));
        throughout(2, () -> {
            for (var observer : clients.observers()) {
                equal(addresses(asked(observer, GROUP, service)), List.of("10.4.15.1:8080"), "the row of the other");
            }
        });
        clients.end(second);
    }

    private void batch() throws Exception {
        var service = named("batch");
        var seen = new Seen();
        clients.at(1).subscribe(service, seen);
        var three = List.of(row("10.4.20.1", 1), row("10.4.20.1", 2), row("10.4.20.2", 3));
        clients.at(0).batchRegisterInstance(service, GROUP, three);
        everywhere(service, "10.4.20.1:1", "10.4.20.1:2", "10.4.20.2:3");
        seen.until("10.4.20.1:1", "10.4.20.1:2", "10.4.20.2:3");
        clients.at(2).batchRegisterInstance(service, GROUP, List.of(row("10.4.20.3", 4)));
        everywhere(service, "10.4.20.1:1", "10.4.20.1:2", "10.4.20.2:3", "10.4.20.3:4");
    }

    private void batchReplacement() throws Exception {
        var service = named("replaced");
        var provider = clients.at(0);
        var seen = new Seen();
        clients.at(1).subscribe(service, seen);
        provider.batchRegisterInstance(service, GROUP, List.of(row("10.4.21.1"), row("10.4.21.2")));
        seen.until("10.4.21.1:8080", "10.4.21.2:8080");
        provider.batchRegisterInstance(service, GROUP, List.of(weighted("10.4.21.2", 4), row("10.4.21.3")));
        seen.until("10.4.21.2:8080", "10.4.21.3:8080");
        everywhere(service, "10.4.21.2:8080", "10.4.21.3:8080");
        seen.until("the one kept has its new weight", SOON, now -> now.stream().anyMatch(row -> row.getWeight() == 4));
        // The client sends the batch again without the one that goes.
        provider.batchDeregisterInstance(service, GROUP, List.of(weighted("10.4.21.2", 4)));
        seen.until("10.4.21.3:8080");
        everywhere(service, "10.4.21.3:8080");
    }
}
