package ecosystem.spring;

import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** Answers with its own address. The starter registers it under its application name. */
@EnableAutoConfiguration
@RestController
public class Provider {
    @Value("${server.address}:${server.port}")
    private String address;

    @GetMapping("/where")
    String where() {
        return address;
    }

    public static void main(String[] args) {
        SpringApplication.run(Provider.class, args);
    }
}
