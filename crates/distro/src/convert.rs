//! Between what stands in frames and what the registry holds.

use std::sync::Arc;

use rollcall_core::registry::change::{ClientId, Override, OverrideEdit, RowOp, VersionedValue};
use rollcall_core::registry::records::{
    ClusterSettings, HiddenRows, NamespaceSettings, Quarantine, Record, RecordKey, ServiceSettings,
};
use rollcall_core::{Instance, MemberId, Metadata, Millis, RowKey, ServiceKey, Stamp};
use smol_str::SmolStr;

use crate::message::{
    Op, WireInstance, WireOverride, WireOverrideEdit, WireRecord, WireRecordKey, WireRow, WireService,
    WireValue,
};

impl From<&ServiceKey> for WireService {
    fn from(key: &ServiceKey) -> Self {
        WireService {
            namespace: key.namespace().to_owned(),
            group: key.group().to_owned(),
            name: key.name().to_owned(),
        }
    }
}

impl From<&WireService> for ServiceKey {
    fn from(wire: &WireService) -> Self {
        ServiceKey::new(&wire.namespace, &wire.group, &wire.name)
    }
}

impl From<&RowKey> for WireRow {
    fn from(key: &RowKey) -> Self {
        WireRow {
            ip: key.ip.to_string(),
            port: key.port,
            cluster: key.cluster.to_string(),
        }
    }
}

impl From<WireRow> for RowKey {
    fn from(wire: WireRow) -> Self {
        RowKey {
            ip: wire.ip.into(),
            port: wire.port,
            cluster: wire.cluster.into(),
        }
    }
}

fn pairs(metadata: &Metadata) -> Vec<(String, String)> {
    metadata
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

fn metadata(pairs: Vec<(String, String)>) -> Metadata {
    Metadata::from_pairs(
        pairs
            .into_iter()
            .map(|(k, v)| (SmolStr::from(k), SmolStr::from(v))),
    )
}

impl From<&Instance> for WireInstance {
    fn from(instance: &Instance) -> Self {
        WireInstance {
            row: (&instance.row_key()).into(),
            weight: instance.weight,
            enabled: instance.enabled,
            healthy: instance.healthy,
            metadata: pairs(&instance.metadata),
            instance_id: instance.instance_id.as_ref().map(|id| id.to_string()),
        }
    }
}

impl From<WireInstance> for Instance {
    fn from(wire: WireInstance) -> Self {
        Instance {
            ip: wire.row.ip.into(),
            port: wire.row.port,
            cluster: wire.row.cluster.into(),
            weight: wire.weight,
            enabled: wire.enabled,
            healthy: wire.healthy,
            metadata: metadata(wire.metadata),
            instance_id: wire.instance_id.map(SmolStr::from),
        }
    }
}

impl From<&Override> for WireOverride {
    fn from(over: &Override) -> Self {
        WireOverride {
            weight: over.weight,
            enabled: over.enabled,
            metadata: pairs(&over.metadata),
        }
    }
}

impl From<WireOverride> for Override {
    fn from(wire: WireOverride) -> Self {
        Override {
            weight: wire.weight,
            enabled: wire.enabled,
            metadata: metadata(wire.metadata),
        }
    }
}

impl From<&OverrideEdit> for WireOverrideEdit {
    fn from(edit: &OverrideEdit) -> Self {
        match edit {
            OverrideEdit::Replace(over) => WireOverrideEdit::Replace(over.into()),
            OverrideEdit::Patch {
                weight,
                enabled,
                metadata,
            } => WireOverrideEdit::Patch {
                weight: *weight,
                enabled: *enabled,
                metadata: metadata.as_ref().map(pairs),
            },
            OverrideEdit::Lay(metadata) => WireOverrideEdit::Lay(pairs(metadata)),
            OverrideEdit::TakeAway(keys) => {
                WireOverrideEdit::TakeAway(keys.iter().map(|key| key.to_string()).collect())
            }
        }
    }
}

impl From<WireOverrideEdit> for OverrideEdit {
    fn from(wire: WireOverrideEdit) -> Self {
        match wire {
            WireOverrideEdit::Replace(over) => OverrideEdit::Replace(over.into()),
            WireOverrideEdit::Patch {
                weight,
                enabled,
                metadata: pairs,
            } => OverrideEdit::Patch {
                weight,
                enabled,
                metadata: pairs.map(metadata),
            },
            WireOverrideEdit::Lay(pairs) => OverrideEdit::Lay(metadata(pairs)),
            WireOverrideEdit::TakeAway(keys) => {
                OverrideEdit::TakeAway(keys.into_iter().map(SmolStr::from).collect())
            }
        }
    }
}

impl From<&RecordKey> for WireRecordKey {
    fn from(key: &RecordKey) -> Self {
        match key {
            RecordKey::Namespace(id) => WireRecordKey::Namespace(id.to_string()),
            RecordKey::Service(service) => WireRecordKey::Service(service.into()),
            RecordKey::Cluster(service, name) => WireRecordKey::Cluster(service.into(), name.to_string()),
            RecordKey::Quarantine(service, rows) => WireRecordKey::Quarantine(
                service.into(),
                rows.ip.to_string(),
                rows.port,
                rows.cluster.as_ref().map(|c| c.to_string()),
            ),
            RecordKey::Switch(name) => WireRecordKey::Switch(name.to_string()),
        }
    }
}

impl From<WireRecordKey> for RecordKey {
    fn from(wire: WireRecordKey) -> Self {
        match wire {
            WireRecordKey::Namespace(id) => RecordKey::Namespace(id.into()),
            WireRecordKey::Service(service) => RecordKey::Service((&service).into()),
            WireRecordKey::Cluster(service, name) => RecordKey::Cluster((&service).into(), name.into()),
            WireRecordKey::Quarantine(service, ip, port, cluster) => {
                let (ip, cluster) = (ip.into(), cluster.map(SmolStr::from));
                RecordKey::Quarantine((&service).into(), HiddenRows { ip, port, cluster })
            }
            WireRecordKey::Switch(name) => RecordKey::Switch(name.into()),
        }
    }
}

impl From<&Record> for WireRecord {
    fn from(record: &Record) -> Self {
        match record {
            Record::Namespace(settings) => WireRecord::Namespace {
                name: settings.name.to_string(),
                description: settings.description.to_string(),
            },
            Record::Service(settings) => WireRecord::Service {
                protect_threshold: settings.protect_threshold,
                metadata: pairs(&settings.metadata),
                selector: settings.selector.to_string(),
                is_ephemeral: settings.is_ephemeral,
            },
            Record::Cluster(settings) => WireRecord::Cluster {
                health_checker: settings.health_checker.to_string(),
                check_port: settings.check_port,
                uses_instance_port: settings.uses_instance_port,
                metadata: pairs(&settings.metadata),
            },
            Record::Quarantine(why) => WireRecord::Quarantine {
                until: why.until.map(|until| until.0),
                reason: why.reason.to_string(),
            },
            Record::Switch(value) => WireRecord::Switch(value.to_string()),
        }
    }
}

impl From<WireRecord> for Record {
    fn from(wire: WireRecord) -> Self {
        match wire {
            WireRecord::Namespace { name, description } => Record::Namespace(Arc::new(NamespaceSettings {
                name: name.into(),
                description: description.into(),
            })),
            WireRecord::Service {
                protect_threshold,
                metadata: pairs,
                selector,
                is_ephemeral,
            } => Record::Service(Arc::new(ServiceSettings {
                protect_threshold,
                metadata: metadata(pairs),
                selector: selector.into(),
                is_ephemeral,
            })),
            WireRecord::Cluster {
                health_checker,
                check_port,
                uses_instance_port,
                metadata: pairs,
            } => Record::Cluster(Arc::new(ClusterSettings {
                health_checker: health_checker.into(),
                check_port,
                uses_instance_port,
                metadata: metadata(pairs),
            })),
            WireRecord::Quarantine { until, reason } => Record::Quarantine(Arc::new(Quarantine {
                until: until.map(Millis),
                reason: reason.into(),
            })),
            WireRecord::Switch(value) => Record::Switch(value.into()),
        }
    }
}

impl From<&RowOp> for Op {
    fn from(op: &RowOp) -> Self {
        match op {
            RowOp::Publish {
                client,
                service,
                instance,
                stamp,
            } => Op::Publish {
                client: client.number,
                service: service.into(),
                instance: (&**instance).into(),
                time: stamp.time,
            },
            RowOp::Withdraw { client, service, row } => Op::Withdraw {
                client: client.number,
                service: service.into(),
                row: row.into(),
            },
            RowOp::ClientGone { client } => Op::ClientGone {
                client: client.number,
            },
            RowOp::Versioned {
                service,
                row,
                stamp,
                value,
            } => Op::Versioned {
                service: service.into(),
                row: row.into(),
                time: stamp.time,
                member: stamp.member.0,
                value: match value {
                    VersionedValue::Beat(instance) => WireValue::Beat((&**instance).into()),
                    VersionedValue::Override(over) => WireValue::Override((&**over).into()),
                    VersionedValue::NoBeat { expired } => WireValue::NoBeat { expired: *expired },
                    VersionedValue::NoOverride => WireValue::NoOverride,
                },
            },
            RowOp::Record { key, stamp, record } => Op::Record {
                key: key.into(),
                time: stamp.time,
                member: stamp.member.0,
                record: record.as_ref().map(Into::into),
            },
        }
    }
}

/// The operation as the registry applies it; connection rows belong to `origin`.
///
/// A beat row's key is taken from its instance, so that the two cannot disagree.
pub fn row_op(op: Op, origin: MemberId) -> RowOp {
    match op {
        Op::Publish {
            client,
            service,
            instance,
            time,
        } => RowOp::Publish {
            client: ClientId {
                origin,
                number: client,
            },
            service: (&service).into(),
            instance: Arc::new(instance.into()),
            stamp: Stamp { time, member: origin },
        },
        Op::Withdraw { client, service, row } => RowOp::Withdraw {
            client: ClientId {
                origin,
                number: client,
            },
            service: (&service).into(),
            row: row.into(),
        },
        Op::Record {
            key,
            time,
            member,
            record,
        } => RowOp::Record {
            key: key.into(),
            stamp: Stamp {
                time,
                member: MemberId(member),
            },
            record: record.map(Into::into),
        },
        Op::ClientGone { client } => RowOp::ClientGone {
            client: ClientId {
                origin,
                number: client,
            },
        },
        Op::Versioned {
            service,
            row,
            time,
            member,
            value,
        } => {
            let value = match value {
                WireValue::Beat(instance) => VersionedValue::Beat(Arc::new(instance.into())),
                WireValue::Override(over) => VersionedValue::Override(Arc::new(over.into())),
                WireValue::NoBeat { expired } => VersionedValue::NoBeat { expired },
                WireValue::NoOverride => VersionedValue::NoOverride,
            };
            let row = match &value {
                VersionedValue::Beat(instance) => instance.row_key(),
                _ => row.into(),
            };
            RowOp::Versioned {
                service: (&service).into(),
                row,
                stamp: Stamp {
                    time,
                    member: MemberId(member),
                },
                value,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_as_they_went_out() {
        let origin = MemberId(9);
        let client = ClientId { origin, number: 4 };
        let service = ServiceKey::new("dev", "G", "s");
        let mut instance = Instance::at("::1", 65535);
        instance.metadata = Metadata::from_pairs([("k".into(), "v\"\n说明".into())]);
        instance.instance_id = Some("id".into());
        let row = instance.row_key();
        let instance = Arc::new(instance);
        let stamp = Stamp {
            time: 77,
            member: origin,
        };
        let over = Override {
            weight: 0.0,
            enabled: false,
            metadata: instance.metadata.clone(),
        };
        let versioned = |value| RowOp::Versioned {
            service: service.clone(),
            row: row.clone(),
            stamp: Stamp {
                time: 5,
                member: MemberId(3),
            },
            value,
        };
        let ops = [
            RowOp::Publish {
                client,
                service: service.clone(),
                instance: instance.clone(),
                stamp,
            },
            RowOp::Withdraw {
                client,
                service: service.clone(),
                row: row.clone(),
            },
            RowOp::ClientGone { client },
            versioned(VersionedValue::Beat(instance.clone())),
            versioned(VersionedValue::Override(Arc::new(over))),
            versioned(VersionedValue::NoBeat { expired: true }),
            versioned(VersionedValue::NoOverride),
        ];
        for op in ops {
            assert_eq!(row_op(Op::from(&op), origin), op);
        }
    }
}
