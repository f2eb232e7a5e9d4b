package driver;

import com.alibaba.nacos.api.naming.pojo.Instance;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Instances, as they are given and compared. */
public final class Rows {
    /** Limits of a 1.x provider that is missed soon. */
    public static final Map<String, String> QUICK = Map.of(
        "preserved.heart.beat.interval", "1000",
        "preserved.heart.beat.timeout", "3000",
        "preserved.ip.delete.timeout", "6000");

    private Rows() {}

    public static Instance row(String ip, int port) {
        var row = new Instance();
        row.setIp(ip);
        row.setPort(port);
        row.setClusterName("DEFAULT");
        return row;
    }

    public static Instance row(String ip) {
        return row(ip, 8080);
    }

    public static Instance weighted(String ip, double weight) {
        var row = row(ip);
        row.setWeight(weight);
        return row;
    }

    public static Instance withMetadata(String ip, Map<String, String> metadata) {
        var row = row(ip);
        row.setMetadata(metadata);
        return row;
    }

    public static Instance inCluster(String ip, String cluster) {
        var row = row(ip);
        row.setClusterName(cluster);
        return row;
    }

    public static List<String> sorted(String... addresses) {
        return Arrays.stream(addresses).sorted().toList();
    }

    public static List<String> addresses(List<Instance> list) {
        return list.stream().map(row -> row.getIp() + ":" + row.getPort()).sorted().toList();
    }
}
