package driver;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.logging.LogManager;

/** The lines that a program speaks with whoever started it, and waiting. */
public final class Driver {
    /** Seconds in which a change must reach every client. */
    public static final int SOON = 10;
    /** Seconds in which a client must have found another node. The clients wait seconds between their tries. */
    public static final int RECONNECTED = 40;
    /** Seconds of a whole scenario. */
    private static final int PATIENCE = 120;

    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    /** A scenario; it ends with an exception if it fails. */
    public interface Scenario {
        void run() throws Exception;
    }

    private Driver() {}

    /** Keeps what the client writes inside a folder. To be called before any class of the client is loaded. */
    public static void keepIn(Path folder) throws IOException {
        Files.createDirectories(folder);
        System.setProperty("user.home", folder.toString());
        System.setProperty("nacos.logging.default.config.enabled", "false");
        System.setOut(System.err);
        // The client's gRPC logs to standard error otherwise.
        LogManager.getLogManager().reset();
    }

    public static void say(String line) {
        OUT.println(line.replace('\n', ' '));
    }

    /** Asks for something to be done to the cluster and waits until it is. */
    public static void ask(String what) throws IOException {
        say("? " + what);
        var answer = IN.readLine();
        check("done".equals(answer), "asked to %s, the answer was %s", what, answer);
    }

    /** The next line from whoever started this; null at the end. */
    static String heard() throws IOException {
        return IN.readLine();
    }

    public static void check(boolean condition, String text, Object... values) {
        if (!condition) {
            throw new AssertionError(String.format(text, values));
        }
    }

    public static void equal(Object found, Object wanted, String what) {
        check(wanted.equals(found), "%s: it is %s, not %s", what, found, wanted);
    }

    /** Repeats an attempt until it raises nothing; gives what it gave. */
    public static <T> T until(String what, int seconds, Callable<T> attempt) throws InterruptedException {
        var deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (true) {
            try {
                return attempt.call();
            } catch (Exception | AssertionError error) {
                if (System.nanoTime() > deadline) {
                    throw new AssertionError("not within " + seconds + " s: " + what + ": " + error, error);
                }
            }
            Thread.sleep(50);
        }
    }

    /** Repeats a check for so many seconds; it must hold each time. */
    public static void throughout(int seconds, Scenario check) throws Exception {
        var end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (System.nanoTime() < end) {
            check.run();
            Thread.sleep(50);
        }
    }

    /** Runs the scenarios one after another, what is to be done after each, and ends the process. */
    public static void run(Map<String, Scenario> scenarios, Scenario after) {
        var isGood = true;
        for (var scenario : scenarios.entrySet()) {
            try {
                limited(() -> {
                    try {
                        scenario.getValue().run();
                    } finally {
                        after.run();
                    }
                });
                say("ok " + scenario.getKey());
            } catch (Exception | AssertionError error) {
                isGood = false;
                say("FAILED " + scenario.getKey() + ": " + error);
            }
        }
        // The client's own threads need not be waited for.
        Runtime.getRuntime().halt(isGood ? 0 : 1);
    }

    private static void limited(Scenario scenario) throws Exception {
        var task = new FutureTask<>(() -> {
            scenario.run();
            return true;
        });
        new Thread(task).start();
        try {
            task.get(PATIENCE, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof Exception exception) {
                throw exception;
            }
            throw new AssertionError(error.getCause().getMessage(), error.getCause());
        } catch (TimeoutException error) {
            throw new AssertionError("not done within " + PATIENCE + " s", error);
        }
    }
}
