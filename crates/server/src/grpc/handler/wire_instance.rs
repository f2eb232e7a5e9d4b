//! The instance object of requests, and how it becomes an instance.

use rollcall_core::model::service_key::DEFAULT_CLUSTER;
use rollcall_core::{Instance, ServiceKey, Violation, limits};
use serde::{Deserialize, Deserializer};
use smol_str::{SmolStr, format_smolstr};

use crate::grpc::lenient::{Bool, Double, Int, Pairs, Text, object};

object! {
    /// An instance as clients send it. `ephemeral` is not read: what a connection registers ends with it.
    WireInstance<'a> {
        /// Given id.
        instance_id ("instanceId"): Text<'a> = Text(None),
        /// Address.
        ip ("ip"): Text<'a> = Text(None),
        /// Port, not checked yet.
        port ("port"): Int = Int(0),
        /// Weight.
        weight ("weight"): Double = Double(1.0),
        /// Healthy.
        healthy ("healthy"): Bool = Bool(true),
        /// Enabled.
        enabled ("enabled"): Bool = Bool(true),
        /// Cluster; blank stands for `DEFAULT`.
        cluster ("clusterName"): Text<'a> = Text(None),
        /// Grouped name; only used in a derived id.
        service ("serviceName"): Text<'a> = Text(None),
        /// Text pairs.
        metadata ("metadata"): Pairs = Pairs::default(),
    }
}

/// An instance, or nothing for `null`.
#[derive(Clone, Debug, Default)]
pub struct MaybeInstance<'a>(pub Option<Box<WireInstance<'a>>>);

impl<'de> Deserialize<'de> for MaybeInstance<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<WireInstance<'de>>::deserialize(deserializer)
            .map(|instance| MaybeInstance(instance.map(Box::new)))
    }
}

/// A list of instances, or nothing for `null`.
#[derive(Clone, Debug, Default)]
pub struct MaybeInstances<'a>(pub Option<Vec<WireInstance<'a>>>);

impl<'de> Deserialize<'de> for MaybeInstances<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<Vec<WireInstance<'de>>>::deserialize(deserializer).map(MaybeInstances)
    }
}

impl WireInstance<'_> {
    /// Checks the form of cluster, address, port and metadata, in the order in which they are reported.
    pub fn check(&self, metadata_limit: usize) -> Result<u16, Violation> {
        limits::check_cluster(self.cluster.as_str())?;
        limits::check_ip(self.ip.as_str())?;
        let port = limits::check_port(i64::from(self.port.0))?;
        check_pairs(&self.metadata, metadata_limit)?;
        Ok(port)
    }

    /// The instance. `port` is what [`WireInstance::check`] returned.
    pub fn into_instance(self, service: &ServiceKey, port: u16) -> Instance {
        let sent_cluster = self.cluster.0.as_deref();
        let cluster = match sent_cluster {
            Some(cluster) if !cluster.trim().is_empty() => SmolStr::new(cluster),
            _ => SmolStr::new_static(DEFAULT_CLUSTER),
        };
        let ip = SmolStr::new(self.ip.as_str());
        let instance_id = match self.instance_id.0.as_deref() {
            Some(given) if !given.is_empty() => Some(SmolStr::new(given)),
            // The id is derived from what was sent, as recorded; the usual form is not stored.
            _ if sent_cluster == Some(&*cluster) && self.service.as_str().trim().is_empty() => None,
            _ => {
                let named = self.service.as_str();
                let name = if named.trim().is_empty() {
                    service.grouped_name()
                } else {
                    named
                };
                Some(format_smolstr!(
                    "{ip}#{port}#{}#{name}",
                    sent_cluster.unwrap_or("null")
                ))
            }
        };
        let mut instance = Instance {
            ip,
            port,
            cluster,
            weight: self.weight.0,
            enabled: self.enabled.0,
            healthy: self.healthy.0,
            metadata: self.metadata.into_metadata(),
            instance_id: None,
        };
        instance.instance_id = instance_id.filter(|id| *id != instance.id(service));
        instance
    }
}

fn check_pairs(pairs: &Pairs, limit: usize) -> Result<(), Violation> {
    // Bytes are never fewer than UTF-16 units, so small metadata, the usual kind, needs no counting.
    let bytes: usize = pairs.0.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes <= limit {
        Ok(())
    } else {
        limits::check_metadata(&pairs.clone().into_metadata(), limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::lenient::parse;

    fn instance(json: &str) -> Instance {
        let wire: WireInstance<'_> = parse(json.as_bytes()).unwrap_or_default();
        let port = wire.check(1024).unwrap_or_default();
        wire.into_instance(&ServiceKey::new("", "", "s"), port)
    }

    #[test]
    fn every_form_of_no_cluster_is_the_default_one() {
        for (json, id) in [
            (
                r#"{"ip":"1.1.1.1","port":80}"#,
                "1.1.1.1#80#null#DEFAULT_GROUP@@s",
            ),
            (
                r#"{"ip":"1.1.1.1","port":80,"clusterName":null}"#,
                "1.1.1.1#80#null#DEFAULT_GROUP@@s",
            ),
            (
                r#"{"ip":"1.1.1.1","port":80,"clusterName":""}"#,
                "1.1.1.1#80##DEFAULT_GROUP@@s",
            ),
            (
                r#"{"ip":"1.1.1.1","port":80,"clusterName":"DEFAULT"}"#,
                "1.1.1.1#80#DEFAULT#DEFAULT_GROUP@@s",
            ),
        ] {
            let instance = instance(json);
            assert_eq!(instance.cluster, "DEFAULT", "{json}");
            assert_eq!(instance.id(&ServiceKey::new("", "", "s")), id, "{json}");
        }
    }

    #[test]
    fn an_id_that_can_be_derived_is_not_stored() {
        let plain = instance(
            r#"{"ip":"1.1.1.1","port":80,"clusterName":"DEFAULT","serviceName":"DEFAULT_GROUP@@s"}"#,
        );
        assert_eq!(plain.instance_id, None);
        let given = instance(r#"{"ip":"1.1.1.1","port":80,"clusterName":"DEFAULT","instanceId":"my-id"}"#);
        assert_eq!(given.instance_id.as_deref(), Some("my-id"));
    }

    #[test]
    fn bad_parts_are_refused_in_order() {
        let check = |json: &str| {
            parse::<WireInstance<'_>>(json.as_bytes())
                .ok()
                .map(|wire| wire.check(10))
        };
        assert_eq!(check(r#"{"port":65536}"#), Some(Err(Violation::Port)));
        assert_eq!(check(r#"{"port":"-1"}"#), Some(Err(Violation::Port)));
        assert_eq!(
            check(r#"{"ip":"a b","port":-1}"#),
            Some(Err(Violation::IllegalCharacter { param: "ip" }))
        );
        assert_eq!(
            check(r#"{"metadata":{"k":"0123456789"}}"#),
            Some(Err(Violation::TooLong {
                param: "Metadata",
                max: 10
            }))
        );
        assert_eq!(check(r#"{"metadata":{"k":"说说说说说"}}"#), Some(Ok(0)));
    }
}
