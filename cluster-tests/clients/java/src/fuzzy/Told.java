package fuzzy;

import static driver.Driver.SOON;
import static driver.Driver.equal;

import com.alibaba.nacos.api.naming.listener.AbstractFuzzyWatchEventWatcher;
import com.alibaba.nacos.api.naming.listener.FuzzyWatchChangeEvent;
import driver.Driver;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/** The services, by group, as a watcher was told them. */
final class Told extends AbstractFuzzyWatchEventWatcher {
    private final Map<String, TreeSet<String>> now = new TreeMap<>();
    private final List<String> gone = new ArrayList<>();
    private int calls;

    @Override
    public synchronized void onEvent(FuzzyWatchChangeEvent event) {
        calls++;
        var names = now.computeIfAbsent(event.getGroupName(), group -> new TreeSet<>());
        switch (event.getChangeType()) {
            case "ADD_SERVICE" -> names.add(event.getServiceName());
            case "DELETE_SERVICE" -> {
                gone.add(event.getServiceName());
                names.remove(event.getServiceName());
                if (names.isEmpty()) {
                    now.remove(event.getGroupName());
                }
            }
            default -> throw new AssertionError("an unknown change: " + event);
        }
    }

    synchronized int calls() {
        return calls;
    }

    /** Each that was told to have gone, in order. */
    synchronized List<String> gone() {
        return List.copyOf(gone);
    }

    synchronized boolean knows(String group, String name) {
        return now.getOrDefault(group, new TreeSet<>()).contains(name);
    }

    /** Waits until exactly these are known. */
    void until(Map<String, List<String>> wanted) throws InterruptedException {
        untilWithin(SOON, wanted);
    }

    void until(String group, List<String> names) throws InterruptedException {
        untilWithin(SOON, Map.of(group, names));
    }

    void untilWithin(int seconds, String group, List<String> names) throws InterruptedException {
        untilWithin(seconds, Map.of(group, names));
    }

    private void untilWithin(int seconds, Map<String, List<String>> wanted) throws InterruptedException {
        var sorted = new TreeMap<String, TreeSet<String>>();
        wanted.forEach((group, names) -> sorted.put(group, new TreeSet<>(names)));
        Driver.until("a watcher is told " + sorted, seconds, () -> {
            synchronized (this) {
                equal(now, sorted, "what it was told");
            }
            return true;
        });
    }
}
