package driver;

import static driver.Driver.check;

import com.alibaba.nacos.api.naming.NamingFactory;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A process that registers the same instance in some services and holds it until it is killed or we end. */
public final class Provider implements AutoCloseable {
    private final Process process;

    /** Starts it; returns when all is registered. The instance has {@link Rows#QUICK} limits. */
    public Provider(String servers, Path folder, String ip, String... services) throws IOException {
        var command = new ArrayList<>(List.of(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(),
            "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            "-Dlogback.configurationFile=" + System.getProperty("logback.configurationFile"),
            "-cp", System.getProperty("java.class.path"),
            Provider.class.getName(), servers, folder.toString(), ip));
        command.addAll(List.of(services));
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        var line = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
        check("registered".equals(line), "the provider's process said %s", line);
    }

    /** Sends it a signal by name: KILL, STOP, CONT. */
    public void signal(String name) throws IOException, InterruptedException {
        var kill = new ProcessBuilder("bash", "-c", "kill -%s %d".formatted(name, process.pid())).inheritIO().start();
        check(kill.waitFor() == 0, "cannot send %s", name);
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }

    public static void main(String[] args) throws Exception {
        Driver.keepIn(Path.of(args[1]));
        var client = NamingFactory.createNamingService(args[0]);
        for (var service : List.of(args).subList(3, args.length)) {
            client.registerInstance(service, Rows.withMetadata(args[2], Rows.QUICK));
        }
        Driver.say("registered");
        // Its input ends with the process that started it.
        while (Driver.heard() != null) {}
        Runtime.getRuntime().halt(0);
    }
}
