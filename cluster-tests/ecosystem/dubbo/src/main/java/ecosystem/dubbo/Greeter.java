package ecosystem.dubbo;

/** The service that is provided and called. */
public interface Greeter {
    /** The address of the provider that answers. */
    String where();
}
