package ecosystem.dubbo;

import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.RegistryConfig;

/** What providers and consumers have in common. */
final class Settings {
    private Settings() {
    }

    /** An application that opens no port but those of its protocols. */
    static ApplicationConfig application(String name) {
        var application = new ApplicationConfig(name);
        application.setQosEnable(false);
        return application;
    }

    /** The registry at these addresses `host:port,...`, for naming alone: Rollcall keeps no configuration. */
    static RegistryConfig registry(String servers) {
        var all = servers.split(",", 2);
        var registry = new RegistryConfig("nacos://" + all[0] + (all.length > 1 ? "?backup=" + all[1] : ""));
        registry.setUseAsConfigCenter(false);
        registry.setUseAsMetadataCenter(false);
        return registry;
    }
}
