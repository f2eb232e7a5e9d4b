package driver;

import driver.Driver.Scenario;

/** Repeats a check in the background until it is closed, and keeps its first failure. */
final class Watch implements AutoCloseable {
    private volatile boolean isOver;
    private volatile Throwable failure;

    Watch(Scenario check) {
        new Thread(() -> {
            try {
                while (!isOver) {
                    check.run();
                    Thread.sleep(50);
                }
            } catch (Exception | AssertionError error) {
                failure = error;
            }
        }).start();
    }

    /** Fails if the check has failed. */
    void check() {
        if (failure != null) {
            throw new AssertionError("watched in the background: " + failure, failure);
        }
    }

    /** What it finds from now on is of no interest. */
    @Override
    public void close() {
        isOver = true;
    }
}
