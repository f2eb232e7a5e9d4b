package ecosystem.dubbo;

import java.util.LinkedHashMap;
import java.util.Map;

import org.apache.dubbo.config.ReferenceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;

/**
 * Calls {@link Greeter} for ever through references that find their providers in different ways, and prints what
 * becomes of each call. Argument: servers. See the README for the lines that it prints.
 */
public class Consumer {
    private static final long PAUSE_MS = 50;

    public static void main(String[] args) throws InterruptedException {
        var references = new LinkedHashMap<String, ReferenceConfig<Greeter>>();
        references.put("interface", reference("ecosystem", "1.0.0", "FORCE_INTERFACE"));
        references.put("application", reference("ecosystem", "1.0.0", "FORCE_APPLICATION"));
        references.put("either", reference(null, null, "APPLICATION_FIRST"));
        references.put("wildcard", reference("*", "*", "FORCE_INTERFACE"));

        var bootstrap = DubboBootstrap.getInstance()
                .application(Settings.application("caller"))
                .registry(Settings.registry(args[0]));
        references.values().forEach(bootstrap::reference);
        bootstrap.start();

        while (true) {
            references.forEach((name, reference) -> call(name, reference.get()));
            Thread.sleep(PAUSE_MS);
        }
    }

    private static ReferenceConfig<Greeter> reference(String group, String version, String step) {
        var reference = new ReferenceConfig<Greeter>();
        reference.setInterface(Greeter.class);
        reference.setGroup(group);
        reference.setVersion(version);
        // Where no metadata center knows which application provides an interface, the consumer says it.
        reference.setProvidedBy("greeter");
        reference.setParameters(Map.of("migration.step", step));
        // Each call goes to one provider, once: no failure is hidden by another try.
        reference.setRetries(0);
        reference.setTimeout(5000);
        reference.setLoadbalance("roundrobin");
        return reference;
    }

    private static void call(String name, Greeter greeter) {
        try {
            System.out.println("@ call " + name + " " + greeter.where());
        } catch (RuntimeException error) {
            System.out.println("@ failed " + name + " " + String.valueOf(error).replace('\n', ' '));
        }
    }
}
