package ecosystem.spring;

import java.util.TreeSet;

import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.web.client.RestClientBuilderConfigurer;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.cloud.client.discovery.event.HeartbeatEvent;
import org.springframework.cloud.client.loadbalancer.LoadBalanced;
import org.springframework.context.ApplicationListener;
import org.springframework.context.annotation.Bean;
import org.springframework.web.client.RestClient;

/**
 * Calls the service `greeter` for ever and prints what becomes of each call, and the names of all services at each
 * heartbeat of the discovery client. See the README for the lines that it prints.
 */
@EnableAutoConfiguration
public class Consumer {
    private static final long PAUSE_MS = 50;

    @Bean
    @LoadBalanced
    RestClient.Builder restClientBuilder(RestClientBuilderConfigurer configurer) {
        return configurer.configure(RestClient.builder());
    }

    @Bean
    ApplicationListener<HeartbeatEvent> heartbeatListener(DiscoveryClient discovery) {
        return event -> System.out.println("@ services " + String.join(" ", new TreeSet<>(discovery.getServices())));
    }

    public static void main(String[] args) throws InterruptedException {
        var client = SpringApplication.run(Consumer.class, args).getBean(RestClient.Builder.class).build();
        while (true) {
            try {
                var where = client.get().uri("http://greeter/where").retrieve().body(String.class);
                System.out.println("@ call rest " + where);
            } catch (RuntimeException error) {
                System.out.println("@ failed rest " + String.valueOf(error).replace('\n', ' '));
            }
            Thread.sleep(PAUSE_MS);
        }
    }
}
