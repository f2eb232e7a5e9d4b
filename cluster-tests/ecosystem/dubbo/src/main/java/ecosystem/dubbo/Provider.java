package ecosystem.dubbo;

import java.util.Map;

import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;

/**
 * Provides {@link Greeter} twice: as group `ecosystem`, version `1.0.0`, and with neither. Arguments: servers, host,
 * port, mode of registration (`interface`, `instance`, or `all`), and the length of a parameter that comes with each
 * service, as many methods or long settings would.
 */
public class Provider {
    public static void main(String[] args) {
        var host = args[1];
        var port = Integer.parseInt(args[2]);
        var application = Settings.application("greeter");
        application.setRegisterMode(args[3]);
        var protocol = new ProtocolConfig("dubbo", port);
        protocol.setHost(host);

        Greeter greeter = () -> host + ":" + port;
        var note = Map.of("note", "n".repeat(Integer.parseInt(args[4])));
        var versioned = service(greeter, note);
        versioned.setGroup("ecosystem");
        versioned.setVersion("1.0.0");

        DubboBootstrap.getInstance()
                .application(application)
                .registry(Settings.registry(args[0]))
                .protocol(protocol)
                .service(versioned)
                .service(service(greeter, note))
                .start()
                .await();
    }

    private static ServiceConfig<Greeter> service(Greeter greeter, Map<String, String> parameters) {
        var service = new ServiceConfig<Greeter>();
        service.setInterface(Greeter.class);
        service.setRef(greeter);
        service.setParameters(parameters);
        return service;
    }
}
