package driver;

import static driver.Driver.SOON;
import static driver.Driver.check;

import com.alibaba.nacos.api.naming.listener.Event;
import com.alibaba.nacos.api.naming.listener.EventListener;
import com.alibaba.nacos.api.naming.listener.NamingEvent;
import com.alibaba.nacos.api.naming.pojo.Instance;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;

/** The list as a subscriber was told it last. */
public final class Seen implements EventListener {
    private final AtomicInteger calls = new AtomicInteger();
    private volatile List<Instance> now = List.of();

    @Override
    public void onEvent(Event event) {
        now = List.copyOf(((NamingEvent) event).getInstances());
        calls.incrementAndGet();
    }

    public List<Instance> now() {
        return now;
    }

    public int calls() {
        return calls.get();
    }

    /** Waits until the list is such. */
    public void until(String what, int seconds, Predicate<List<Instance>> isWanted) throws InterruptedException {
        Driver.until(what, seconds, () -> {
            var list = now;
            check(isWanted.test(list), "after %s calls the last list is %s", calls, Rows.addresses(list));
            return list;
        });
    }

    /** Waits until exactly these addresses are in the list. */
    public void until(String... wanted) throws InterruptedException {
        untilWithin(SOON, wanted);
    }

    public void untilWithin(int seconds, String... wanted) throws InterruptedException {
        var sorted = Rows.sorted(wanted);
        until("a subscriber is told " + sorted, seconds, list -> Rows.addresses(list).equals(sorted));
    }
}
