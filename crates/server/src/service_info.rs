//! Lists of instances as clients read them (`ServiceInfo`): one form for gRPC, pushes and HTTP.

use rollcall_core::model::instance::KEY_ID_GENERATOR;
use rollcall_core::registry::view::{EncodedHosts, HostEncoder};
use rollcall_core::{Instance, Metadata, Millis, Selection, ServiceKey, ServiceView};

use crate::json;
use crate::transport::Generation;

/// Writes one host object, the same in all answers.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl HostEncoder for Host {
    fn encode(&self, service: &ServiceKey, instance: &Instance, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"instanceId\":");
        json::string(out, &instance.id(service));
        out.extend_from_slice(b",\"ip\":");
        json::string(out, &instance.ip);
        out.extend_from_slice(b",\"port\":");
        json::unsigned(out, u64::from(instance.port));
        out.extend_from_slice(b",\"weight\":");
        json::double(out, instance.weight);
        out.extend_from_slice(b",\"healthy\":");
        json::boolean(out, instance.healthy);
        out.extend_from_slice(b",\"enabled\":");
        json::boolean(out, instance.enabled);
        out.extend_from_slice(b",\"ephemeral\":true,\"clusterName\":");
        json::string(out, &instance.cluster);
        out.extend_from_slice(b",\"serviceName\":");
        json::string(out, service.grouped_name());
        out.extend_from_slice(b",\"metadata\":");
        metadata(out, &instance.metadata);
        let times = instance.beat_times();
        out.extend_from_slice(b",\"instanceHeartBeatInterval\":");
        json::unsigned(out, times.interval.0);
        out.extend_from_slice(b",\"instanceHeartBeatTimeOut\":");
        json::unsigned(out, times.timeout.0);
        out.extend_from_slice(b",\"ipDeleteTimeout\":");
        json::unsigned(out, times.delete.0);
        // Recorded: `simple` only when there is no metadata at all, else what the metadata says, else nothing.
        if instance.metadata.is_empty() {
            out.extend_from_slice(b",\"instanceIdGenerator\":\"simple\"");
        } else if let Some(generator) = instance.metadata.get(KEY_ID_GENERATOR) {
            out.extend_from_slice(b",\"instanceIdGenerator\":");
            json::string(out, generator);
        }
        out.push(b'}');
    }
}

/// Writes metadata as an object.
pub fn metadata(out: &mut Vec<u8>, metadata: &Metadata) {
    out.push(b'{');
    for (at, (key, value)) in metadata.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::string(out, key);
        out.push(b':');
        json::string(out, value);
    }
    out.push(b'}');
}

/// What stands around the hosts of a list. A part that is `None` is left out.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Name, plain on gRPC, grouped on HTTP.
    pub name: Option<&'a str>,
    /// Group.
    pub group: Option<&'a str>,
    /// The clusters text of the request, echoed.
    pub clusters: Option<&'a str>,
    /// Time of the list.
    pub last_ref_time: Millis,
    /// How long clients may use the list before they ask again.
    pub cache: Millis,
    /// Which field names the client reads.
    pub generation: Generation,
}

/// Selects from `view` and writes the list.
pub fn write_view(out: &mut Vec<u8>, header: Header<'_>, view: &ServiceView, healthy_only: bool) {
    let selection = Selection {
        clusters: header.clusters.unwrap_or_default(),
        healthy_only,
    };
    let encoded = view.encoded(&selection, &Host);
    out.reserve(encoded.hosts.len() + 512);
    write(out, header, &encoded.hosts, &encoded);
}

/// As [`write_view`] for a push over UDP, which never says that the protection acts (recorded).
pub fn write_unprotected(out: &mut Vec<u8>, header: Header<'_>, view: &ServiceView) {
    let selection = Selection {
        clusters: header.clusters.unwrap_or_default(),
        healthy_only: false,
    };
    let encoded = view.encoded(&selection, &Host);
    write_parts(out, header, &encoded.hosts, false);
}

/// Writes a list without hosts.
pub fn write_empty(out: &mut Vec<u8>, header: Header<'_>) {
    write_parts(out, header, b"", false);
}

fn write(out: &mut Vec<u8>, header: Header<'_>, hosts: &[u8], encoded: &EncodedHosts) {
    write_parts(out, header, hosts, encoded.reach_protection);
}

fn write_parts(out: &mut Vec<u8>, header: Header<'_>, hosts: &[u8], reach_protection: bool) {
    out.push(b'{');
    for (field, value) in [
        (&b"\"name\":"[..], header.name),
        (b"\"groupName\":", header.group),
        (b"\"clusters\":", header.clusters),
    ] {
        if let Some(value) = value {
            out.extend_from_slice(field);
            json::string(out, value);
            out.push(b',');
        }
    }
    out.extend_from_slice(b"\"cacheMillis\":");
    json::unsigned(out, header.cache.0);
    out.extend_from_slice(b",\"hosts\":[");
    out.extend_from_slice(hosts);
    out.extend_from_slice(b"],\"lastRefTime\":");
    json::unsigned(out, header.last_ref_time.0);
    out.extend_from_slice(match header.generation {
        Generation::Two => b",\"checksum\":\"\",\"allIPs\":false,\"reachProtectionThreshold\":",
        Generation::Three => b",\"checksum\":\"\",\"allIps\":false,\"reachProtectionThreshold\":",
    });
    json::boolean(out, reach_protection);
    out.extend_from_slice(b",\"valid\":true}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(instance: &Instance) -> String {
        let mut out = Vec::new();
        Host.encode(&ServiceKey::new("", "", "s"), instance, &mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    #[test]
    fn a_host_has_the_recorded_fields_in_order() {
        assert_eq!(
            host(&Instance::at("10.0.0.1", 80)),
            r#"{"instanceId":"10.0.0.1#80#DEFAULT#DEFAULT_GROUP@@s","ip":"10.0.0.1","port":80,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","serviceName":"DEFAULT_GROUP@@s","metadata":{},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000,"instanceIdGenerator":"simple"}"#
        );
    }

    #[test]
    fn the_id_generator_is_left_out_beside_other_metadata() {
        let mut instance = Instance::at("10.0.0.1", 80);
        instance.metadata = Metadata::from_pairs([("a".into(), "b".into())]);
        assert!(host(&instance).ends_with(r#""metadata":{"a":"b"},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000}"#));
        instance.metadata = Metadata::from_pairs([(KEY_ID_GENERATOR.into(), "snowflake".into())]);
        assert!(host(&instance).ends_with(r#","instanceIdGenerator":"snowflake"}"#));
    }

    #[test]
    fn a_list_echoes_its_header() {
        let mut out = Vec::new();
        let header = Header {
            name: Some("s"),
            group: Some("g"),
            clusters: Some("c1,c2"),
            last_ref_time: Millis(17),
            cache: Millis(10_000),
            generation: Generation::Two,
        };
        write_empty(&mut out, header);
        write_empty(
            &mut out,
            Header {
                name: None,
                clusters: None,
                generation: Generation::Three,
                ..header
            },
        );
        assert_eq!(
            String::from_utf8(out).unwrap_or_default(),
            concat!(
                r#"{"name":"s","groupName":"g","clusters":"c1,c2","cacheMillis":10000,"hosts":[],"lastRefTime":17,"#,
                r#""checksum":"","allIPs":false,"reachProtectionThreshold":false,"valid":true}"#,
                r#"{"groupName":"g","cacheMillis":10000,"hosts":[],"lastRefTime":17,"#,
                r#""checksum":"","allIps":false,"reachProtectionThreshold":false,"valid":true}"#,
            )
        );
    }
}
