package driver;

import static driver.Driver.RECONNECTED;
import static driver.Driver.check;
import static driver.Driver.until;

import com.alibaba.nacos.api.naming.NamingFactory;
import com.alibaba.nacos.api.naming.NamingService;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Pattern;

/** The client objects of a program. */
public final class Clients {
    private static final Pattern MEMBER = Pattern.compile("\"member\":\"([^\"]+)\"");

    private final List<String> servers;
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<NamingService> observers = new ArrayList<>();
    private final List<NamingService> open = new ArrayList<>();
    private final ExecutorService closers = Executors.newCachedThreadPool();

    /** The addresses, separated by commas. */
    public Clients(String servers) throws Exception {
        this.servers = List.of(servers.split(","));
        for (var server : this.servers) {
            observers.add(connect(server, ""));
        }
    }

    /** A client that knows all nodes and takes one by chance. */
    public NamingService anywhere() throws Exception {
        return kept(connect(String.join(",", servers), ""));
    }

    /** A client that knows one node only. */
    public NamingService at(int node) throws Exception {
        return at(node, "");
    }

    /** As {@link #at(int)}, in another namespace. */
    public NamingService at(int node, String namespace) throws Exception {
        return kept(connect(servers.get(node), namespace));
    }

    /** For each node a client that lasts as long as the program and only reads. */
    public List<NamingService> observers() {
        return observers;
    }

    public int indexOf(String server) {
        return servers.indexOf(server);
    }

    public String servers() {
        return String.join(",", servers);
    }

    /** The node that answers for the only row of a service, as `node` says: it is never one that was just killed. */
    public String publisher(int node, String group, String service) throws IOException, InterruptedException {
        var query = "namespaceId=public&groupName=%s&serviceName=%s".formatted(group, service);
        var uri = URI.create("http://%s/rollcall/rows?%s".formatted(servers.get(node), query));
        var answer = http.send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString()).body();
        var member = MEMBER.matcher(answer);
        check(member.find(), "no publisher in %s", answer);
        return member.group(1);
    }

    /** Begins to end all clients but the observers. */
    public void close() {
        open.forEach(this::end);
        open.clear();
    }

    /** Begins to end a client. Its beats or its connection end at once; 1.x then waits nine seconds for its threads. */
    public void end(NamingService client) {
        closers.submit(() -> {
            client.shutDown();
            return true;
        });
    }

    private NamingService kept(NamingService client) {
        open.add(client);
        return client;
    }

    private static NamingService connect(String servers, String namespace) throws Exception {
        var settings = new Properties();
        settings.put("serverAddr", servers);
        settings.put("namespace", namespace);
        var client = NamingFactory.createNamingService(settings);
        return until("the client is connected", RECONNECTED, () -> {
            check("UP".equals(client.getServerStatus()), "the client says %s", client.getServerStatus());
            return client;
        });
    }
}
