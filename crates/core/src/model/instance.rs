//! One instance of a service, and the key of its row.

use smol_str::SmolStr;
use xxhash_rust::xxh3::Xxh3;

use crate::clock::Millis;
use crate::model::metadata::Metadata;
use crate::model::service_key::ServiceKey;

/// Interval told to clients that beat, unless metadata says otherwise (`spec/validation.md` §7).
pub const DEFAULT_BEAT_INTERVAL: Millis = Millis(5_000);
/// Silence after which a beating instance is unhealthy, unless metadata says otherwise.
pub const DEFAULT_BEAT_TIMEOUT: Millis = Millis(15_000);
/// Silence after which a beating instance is removed, unless metadata says otherwise.
pub const DEFAULT_DELETE_TIMEOUT: Millis = Millis(30_000);
/// Metadata key: beat interval in milliseconds.
pub const KEY_BEAT_INTERVAL: &str = "preserved.heart.beat.interval";
/// Metadata key: silence in milliseconds after which an instance is unhealthy.
pub const KEY_BEAT_TIMEOUT: &str = "preserved.heart.beat.timeout";
/// Metadata key: silence in milliseconds after which an instance is removed.
pub const KEY_DELETE_TIMEOUT: &str = "preserved.ip.delete.timeout";
/// Metadata key: how instance ids are made. Only `simple` is known.
pub const KEY_ID_GENERATOR: &str = "preserved.instance.id.generator";

/// One address at which a service can be reached, with what its publisher says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// IP address or host name, as registered.
    pub ip: SmolStr,
    /// Port, 0 to 65535.
    pub port: u16,
    /// Cluster within the service; never blank.
    pub cluster: SmolStr,
    /// Share of traffic, 0 to 10000; used by clients only.
    pub weight: f64,
    /// False: left out of everything clients read.
    pub enabled: bool,
    /// What the publisher or the beat judge says.
    pub healthy: bool,
    /// Free text pairs; some keys have a meaning (`spec/validation.md` §7).
    pub metadata: Metadata,
    /// Id as given by the publisher; `None` stands for the derived form of [`Instance::id`].
    pub instance_id: Option<SmolStr>,
}

impl Instance {
    /// An enabled, healthy instance of weight 1 in cluster `DEFAULT` without metadata.
    pub fn at(ip: &str, port: u16) -> Self {
        Instance {
            ip: SmolStr::new(ip),
            port,
            cluster: SmolStr::new_static(crate::model::service_key::DEFAULT_CLUSTER),
            weight: 1.0,
            enabled: true,
            healthy: true,
            metadata: Metadata::default(),
            instance_id: None,
        }
    }

    /// The key of this instance's row in its service.
    pub fn row_key(&self) -> RowKey {
        RowKey {
            ip: self.ip.clone(),
            port: self.port,
            cluster: self.cluster.clone(),
        }
    }

    /// The instance id: the given one, else `ip#port#cluster#group@@service` (`spec/validation.md` §6).
    pub fn id(&self, service: &ServiceKey) -> SmolStr {
        self.instance_id.clone().unwrap_or_else(|| {
            smol_str::format_smolstr!(
                "{}#{}#{}#{}",
                self.ip,
                self.port,
                self.cluster,
                service.grouped_name()
            )
        })
    }

    /// The beat times that hold for this instance.
    pub fn beat_times(&self) -> BeatTimes {
        BeatTimes::from_metadata(&self.metadata)
    }
}

/// Key of a row within its service. The same address in two clusters is two rows (`design.md` §2).
///
/// The field order makes rows sort by address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowKey {
    /// IP address or host name.
    pub ip: SmolStr,
    /// Port.
    pub port: u16,
    /// Cluster; never blank.
    pub cluster: SmolStr,
}

impl RowKey {
    /// A hash over service and row that is the same on every member.
    pub fn stable_hash(&self, service: &ServiceKey) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(service.as_str().as_bytes());
        hash.update(&[0]);
        hash.update(self.ip.as_bytes());
        hash.update(&[0]);
        hash.update(&self.port.to_le_bytes());
        hash.update(self.cluster.as_bytes());
        hash.digest()
    }
}

/// How a request names a row: with a cluster, that row; without, the `DEFAULT` row, else the only row with the address
/// (`design.md` §2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowAddress<'a> {
    /// IP address or host name.
    pub ip: &'a str,
    /// Port.
    pub port: u16,
    /// Cluster, if named.
    pub cluster: Option<&'a str>,
}

impl<'a> From<&'a RowKey> for RowAddress<'a> {
    fn from(key: &'a RowKey) -> Self {
        RowAddress {
            ip: &key.ip,
            port: key.port,
            cluster: Some(&key.cluster),
        }
    }
}

/// How long a beating instance may be silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BeatTimes {
    /// Interval told to the client.
    pub interval: Millis,
    /// Silence after which it is unhealthy.
    pub timeout: Millis,
    /// Silence after which it is removed.
    pub delete: Millis,
}

impl BeatTimes {
    /// The times that `metadata` asks for; a value that is not all digits counts as absent.
    pub fn from_metadata(metadata: &Metadata) -> Self {
        let read = |key, default| metadata.get(key).and_then(digits).unwrap_or(default);
        BeatTimes {
            interval: read(KEY_BEAT_INTERVAL, DEFAULT_BEAT_INTERVAL),
            timeout: read(KEY_BEAT_TIMEOUT, DEFAULT_BEAT_TIMEOUT),
            delete: read(KEY_DELETE_TIMEOUT, DEFAULT_DELETE_TIMEOUT),
        }
    }
}

fn digits(text: &str) -> Option<Millis> {
    let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if all { text.parse().ok().map(Millis) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beat_times_come_from_metadata_digits_only() {
        let metadata = Metadata::from_pairs([
            (KEY_BEAT_INTERVAL.into(), "2000".into()),
            (KEY_BEAT_TIMEOUT.into(), "abc".into()),
            (KEY_DELETE_TIMEOUT.into(), "-1".into()),
        ]);
        let times = BeatTimes::from_metadata(&metadata);
        assert_eq!(times.interval, Millis(2000));
        assert_eq!(times.timeout, DEFAULT_BEAT_TIMEOUT);
        assert_eq!(times.delete, DEFAULT_DELETE_TIMEOUT);
    }

    #[test]
    fn a_missing_id_is_derived() {
        let service = ServiceKey::new("", "", "s");
        let mut instance = Instance::at("10.0.0.1", 80);
        assert_eq!(instance.id(&service), "10.0.0.1#80#DEFAULT#DEFAULT_GROUP@@s");
        instance.instance_id = Some("my-id".into());
        assert_eq!(instance.id(&service), "my-id");
    }
}
