//! Services, instances and lists as clients write and read them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// A name that no other test of this process uses.
pub fn unique(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{stem}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A service: namespace, group and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// Namespace id.
    pub namespace: String,
    /// Group.
    pub group: String,
    /// Plain name.
    pub name: String,
}

impl Service {
    /// A service of the default group in namespace `public`.
    pub fn new(name: impl Into<String>) -> Self {
        Service {
            namespace: "public".into(),
            group: "DEFAULT_GROUP".into(),
            name: name.into(),
        }
    }

    /// A service whose name no other test of this process uses.
    pub fn unique(stem: &str) -> Self {
        Service::new(unique(stem))
    }

    /// The same name in another group.
    pub fn group(mut self, group: &str) -> Self {
        self.group = group.into();
        self
    }

    /// The same name in another namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The form `group@@name`.
    pub fn grouped(&self) -> String {
        format!("{}@@{}", self.group, self.name)
    }

    /// The fields of a gRPC request on this service.
    pub fn to_json(&self) -> Value {
        json!({"namespace": self.namespace, "groupName": self.group, "serviceName": self.name})
    }

    /// The parameters of an HTTP request on this service.
    pub fn to_params(&self) -> Vec<(String, String)> {
        vec![
            ("namespaceId".into(), self.namespace.clone()),
            ("groupName".into(), self.group.clone()),
            ("serviceName".into(), self.name.clone()),
        ]
    }
}

/// An instance, as registered or as listed.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Address.
    pub ip: String,
    /// Port.
    pub port: u16,
    /// Cluster.
    pub cluster: String,
    /// Weight.
    pub weight: f64,
    /// Enabled.
    pub enabled: bool,
    /// Healthy.
    pub healthy: bool,
    /// Metadata.
    pub metadata: BTreeMap<String, String>,
}

impl Instance {
    /// A healthy, enabled instance of weight 1 in cluster `DEFAULT`.
    pub fn at(ip: &str, port: u16) -> Self {
        Instance {
            ip: ip.into(),
            port,
            cluster: "DEFAULT".into(),
            weight: 1.0,
            enabled: true,
            healthy: true,
            metadata: BTreeMap::new(),
        }
    }

    /// The same in another cluster.
    pub fn cluster(mut self, cluster: &str) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// The same with another weight.
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// The same with one more pair of metadata.
    pub fn meta(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// The same with its own beat times, in milliseconds: interval, unhealthy after, removed after.
    pub fn beat_times(self, interval: u32, timeout: u32, delete: u32) -> Self {
        self.meta("preserved.heart.beat.interval", &interval.to_string())
            .meta("preserved.heart.beat.timeout", &timeout.to_string())
            .meta("preserved.ip.delete.timeout", &delete.to_string())
    }

    /// The same with beat times that outlast any test: it stays healthy without beats.
    pub fn patient(self) -> Self {
        self.beat_times(5_000, 3_600_000, 3_600_000)
    }

    /// The form `ip:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    /// The instance in a gRPC request.
    pub fn to_json(&self) -> Value {
        json!({
            "ip": self.ip, "port": self.port, "clusterName": self.cluster, "weight": self.weight,
            "enabled": self.enabled, "healthy": self.healthy, "ephemeral": true, "metadata": self.metadata,
        })
    }

    /// The parameters of an HTTP registration.
    pub fn to_params(&self) -> Vec<(String, String)> {
        let mut params = self.row_params();
        params.extend([
            ("weight".into(), self.weight.to_string()),
            ("enabled".into(), self.enabled.to_string()),
            ("healthy".into(), self.healthy.to_string()),
            ("ephemeral".into(), "true".into()),
            ("metadata".into(), json!(self.metadata).to_string()),
        ]);
        params
    }

    /// The parameters that name the row: `ip`, `port`, `clusterName`.
    pub fn row_params(&self) -> Vec<(String, String)> {
        vec![
            ("ip".into(), self.ip.clone()),
            ("port".into(), self.port.to_string()),
            ("clusterName".into(), self.cluster.clone()),
        ]
    }

    /// The JSON of a full beat.
    pub fn to_beat(&self, service: &Service) -> Value {
        json!({
            "ip": self.ip, "port": self.port, "cluster": self.cluster, "weight": self.weight,
            "metadata": self.metadata, "serviceName": service.grouped(), "scheduled": true, "period": 5000,
        })
    }

    /// Reads an entry of `hosts`.
    ///
    /// # Errors
    /// A field is missing or of another type than in the protocol.
    pub fn from_json(value: &Value) -> Result<Self> {
        let text = |key: &str| {
            value[key]
                .as_str()
                .map(String::from)
                .with_context(|| format!("{key} is no text in {value}"))
        };
        let flag = |key: &str| {
            value[key]
                .as_bool()
                .with_context(|| format!("{key} is no boolean in {value}"))
        };
        let pairs = value["metadata"]
            .as_object()
            .with_context(|| format!("no metadata in {value}"))?;
        let metadata = pairs
            .iter()
            .map(|(k, v)| {
                Ok((
                    k.clone(),
                    v.as_str().with_context(|| format!("{k} is no text"))?.to_owned(),
                ))
            })
            .collect::<Result<_>>()?;
        let port = value["port"].as_u64().and_then(|p| u16::try_from(p).ok());
        Ok(Instance {
            ip: text("ip")?,
            port: port.with_context(|| format!("bad port in {value}"))?,
            cluster: text("clusterName")?,
            weight: value["weight"]
                .as_f64()
                .with_context(|| format!("bad weight in {value}"))?,
            enabled: flag("enabled")?,
            healthy: flag("healthy")?,
            metadata,
        })
    }
}

/// A `ServiceInfo`: what a query, a subscription or a push gives.
#[derive(Clone, Debug)]
pub struct List {
    /// The instances, sorted by address and cluster.
    pub hosts: Vec<Instance>,
    /// The whole object as it came.
    pub json: Value,
}

impl List {
    /// Reads a `ServiceInfo` and checks that the fields every client needs are there.
    ///
    /// # Errors
    /// A field is missing or of another type than in the protocol.
    pub fn from_json(json: Value) -> Result<Self> {
        let entries = json["hosts"]
            .as_array()
            .with_context(|| format!("no hosts in {json}"))?;
        let mut hosts = entries
            .iter()
            .map(Instance::from_json)
            .collect::<Result<Vec<_>>>()?;
        hosts.sort_by(|a, b| (&a.ip, a.port, &a.cluster).cmp(&(&b.ip, b.port, &b.cluster)));
        for key in ["lastRefTime", "cacheMillis"] {
            anyhow::ensure!(json[key].is_u64(), "no number {key} in {json}");
        }
        anyhow::ensure!(json["checksum"].is_string(), "no checksum in {json}");
        anyhow::ensure!(
            json["reachProtectionThreshold"].is_boolean(),
            "no reachProtectionThreshold in {json}"
        );
        Ok(List { hosts, json })
    }

    /// Whether it is the list of this service, as gRPC names it.
    pub fn is_of(&self, service: &Service) -> bool {
        self.json["name"] == service.name.as_str() && self.json["groupName"] == service.group.as_str()
    }

    /// The addresses `ip:port`, sorted; an address in two clusters stands twice.
    pub fn addresses(&self) -> Vec<String> {
        let mut list: Vec<String> = self.hosts.iter().map(Instance::address).collect();
        list.sort();
        list
    }

    /// The instance at an address, if there is exactly one.
    ///
    /// # Errors
    /// None, or more than one.
    pub fn at(&self, address: &str) -> Result<&Instance> {
        let mut found = self.hosts.iter().filter(|h| h.address() == address);
        let first = found
            .next()
            .with_context(|| format!("{address} is not among {:?}", self.addresses()))?;
        anyhow::ensure!(
            found.next().is_none(),
            "{address} is listed more than once: {:?}",
            self.hosts
        );
        Ok(first)
    }

    /// The instance at an address in a cluster.
    ///
    /// # Errors
    /// It is not listed.
    pub fn in_cluster(&self, address: &str, cluster: &str) -> Result<&Instance> {
        self.hosts
            .iter()
            .find(|h| h.address() == address && h.cluster == cluster)
            .with_context(|| format!("{address} in {cluster} is not listed: {:?}", self.hosts))
    }

    /// Checks that exactly these addresses are listed, in any order.
    ///
    /// # Errors
    /// Another set is listed.
    pub fn expect(&self, addresses: &[impl AsRef<str>]) -> Result<()> {
        let mut wanted: Vec<&str> = addresses.iter().map(AsRef::as_ref).collect();
        wanted.sort_unstable();
        anyhow::ensure!(
            self.addresses() == wanted,
            "listed are {:?}, wanted {wanted:?}",
            self.addresses()
        );
        Ok(())
    }

    /// Checks that exactly this instance is listed, field by field.
    ///
    /// # Errors
    /// Something else is listed.
    pub fn expect_only(&self, instance: &Instance) -> Result<()> {
        anyhow::ensure!(
            self.hosts == std::slice::from_ref(instance),
            "listed is {:?}, wanted {instance:?}",
            self.hosts
        );
        Ok(())
    }

    /// `lastRefTime`.
    pub fn last_ref_time(&self) -> u64 {
        self.json["lastRefTime"].as_u64().unwrap_or_default()
    }

    /// The echoed `clusters` filter.
    pub fn clusters(&self) -> Option<&str> {
        self.json["clusters"].as_str()
    }
}
