//! Operator data on disk: one redb file in the data directory, written by one thread.
//!
//! What the node wants kept is merged by key while the disk is busy, so what waits is never more than there are keys, and
//! nobody waits for the disk. A write that fails is tried again. Between the answer to an operator and the end of the
//! commit lie a few milliseconds in which only the memory of the members has the change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rollcall_core::MemberId;
use rollcall_core::registry::change::RowOp;
use rollcall_distro::codec;
use rollcall_distro::convert::row_op;
use rollcall_distro::message::Op;
use tracing::{error, info};

use crate::metrics::Counter;

/// By the key of the row or record: its newest version, encoded as members send it.
const OPERATOR: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("operator");
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// The store cannot be used; the text names the file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made.
    #[error("cannot make the data directory {path} (data_dir): {error}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Another process has the file open.
    #[error("{path} is in use by another process (data_dir)")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read as what it should be.
    #[error("{path} cannot be read, move it away to start without what it holds: {error}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: String,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread of the store: {0}")]
    Thread(std::io::Error),
}

/// Rows and records on their way to the disk, encoded, by key; a removal is a version like any other.
type Batch = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Default)]
struct Waiting {
    batch: Batch,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    is_wanted: Condvar,
    failures: Counter,
}

/// The open store. Dropped, it goes on in its thread; see [`Store::close`].
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store of the member `address` in the directory `dir`, which is made if it is not there, and returns what
    /// it holds.
    ///
    /// # Errors
    /// [`StoreError`]; nothing on disk has changed then.
    pub fn open(dir: &Path, address: &str) -> Result<(Store, Vec<RowOp>), StoreError> {
        std::fs::create_dir_all(dir).map_err(|error| StoreError::Directory {
            path: dir.to_owned(),
            error,
        })?;
        // Members that share a directory have a file each.
        let path = dir.join(format!("operator-{}.redb", address.replace([':', '/'], "_")));
        let damaged = |error: String| StoreError::Damaged {
            path: path.clone(),
            error,
        };
        let database = Database::create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: path.clone() },
            error => damaged(error.to_string()),
        })?;
        let kept = read(&database).map_err(damaged)?;
        info!(file = %path.display(), n_kept = kept.len(), "operator data");
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn({
                let shared = shared.clone();
                move || write_loop(&database, &shared, &path)
            })
            .map_err(StoreError::Thread)?;
        let store = Store {
            shared,
            thread: Mutex::new(Some(thread)),
        };
        Ok((store, kept))
    }

    /// Takes what shall be kept. Never waits.
    pub fn keep(&self, ops: &[RowOp]) {
        let mut waiting = self.shared.waiting.lock();
        for op in ops {
            if let Some(key) = key_of(op)
                && let Ok(bytes) = codec::encode(&Op::from(op))
            {
                waiting.batch.insert(key, bytes);
            }
        }
        drop(waiting);
        self.shared.is_wanted.notify_one();
    }

    /// Rows and records that wait for the disk.
    pub fn n_waiting(&self) -> u64 {
        self.shared.waiting.lock().batch.len() as u64
    }

    /// Writes that failed and are tried again.
    pub fn n_failures(&self) -> u64 {
        self.shared.failures.value()
    }

    /// Writes what waits and ends. Blocks until that is done, or has failed once more.
    pub fn close(&self) {
        self.shared.waiting.lock().is_closed = true;
        self.shared.is_wanted.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

fn read(database: &Database) -> Result<Vec<RowOp>, String> {
    let transaction = database.begin_read().map_err(|e| e.to_string())?;
    let table = match transaction.open_table(OPERATOR) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    let mut kept = Vec::new();
    for entry in table.iter().map_err(|e| e.to_string())? {
        let (_, value) = entry.map_err(|e| e.to_string())?;
        let op: Op = codec::decode(value.value()).map_err(|e| e.to_string())?;
        // Only rows of connections belong to the member that sent them, and none of these is here.
        kept.push(row_op(op, MemberId(0)));
    }
    Ok(kept)
}

fn write_loop(database: &Database, shared: &Shared, path: &Path) {
    loop {
        let mut waiting = shared.waiting.lock();
        while waiting.batch.is_empty() && !waiting.is_closed {
            shared.is_wanted.wait(&mut waiting);
        }
        let is_last = waiting.is_closed;
        let batch = std::mem::take(&mut waiting.batch);
        drop(waiting);
        if let Err(reason) = write(database, &batch) {
            error!(file = %path.display(), %reason, "cannot keep operator data on disk");
            shared.failures.increment();
            let mut waiting = shared.waiting.lock();
            for (key, bytes) in batch {
                waiting.batch.entry(key).or_insert(bytes);
            }
            if !is_last {
                shared.is_wanted.wait_for(&mut waiting, RETRY);
            }
        }
        if is_last {
            return;
        }
    }
}

fn write(database: &Database, batch: &Batch) -> Result<(), redb::Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(OPERATOR)?;
        for (key, bytes) in batch {
            table.insert(key.as_slice(), bytes.as_slice())?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// The key of a row or record in the file; `None` for what is not operator data.
fn key_of(op: &RowOp) -> Option<Vec<u8>> {
    match op {
        RowOp::Versioned { service, row, .. } => {
            Some(format!("o\0{service}\0{}\0{}\0{}", row.ip, row.port, row.cluster).into_bytes())
        }
        RowOp::Record { key, .. } => Some(key.text().into_bytes()),
        RowOp::Publish { .. } | RowOp::Withdraw { .. } | RowOp::ClientGone { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rollcall_core::Stamp;
    use rollcall_core::registry::records::{Record, RecordKey};

    use super::*;

    fn switch(value: &str, time: u64) -> RowOp {
        RowOp::Record {
            key: RecordKey::Switch("pushEnabled".into()),
            stamp: Stamp {
                time,
                member: MemberId(7),
            },
            record: Some(Record::Switch(value.into())),
        }
    }

    #[test]
    fn what_was_kept_is_there_again_in_its_newest_version() {
        let dir = tempfile::tempdir().unwrap();
        let (store, kept) = Store::open(dir.path(), "10.0.0.1:8848").unwrap();
        assert_eq!(kept, []);
        store.keep(&[switch("false", 1), switch("true", 2)]);
        store.close();
        assert_eq!((store.n_waiting(), store.n_failures()), (0, 0));
        let (store, kept) = Store::open(dir.path(), "10.0.0.1:8848").unwrap();
        assert_eq!(kept, [switch("true", 2)]);
        let (other, of_other) = Store::open(dir.path(), "10.0.0.2:8848").unwrap();
        assert_eq!(of_other, []);
        other.close();
        store.close();
    }

    #[test]
    fn a_file_in_use_and_a_damaged_one_stop_the_start_and_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), "a:1").unwrap();
        let text = Store::open(dir.path(), "a:1").unwrap_err().to_string();
        assert!(text.contains("operator-a_1.redb is in use"), "{text}");
        store.close();
        std::fs::write(dir.path().join("operator-b_1.redb"), "not a database at all").unwrap();
        let text = Store::open(dir.path(), "b:1").unwrap_err().to_string();
        assert!(text.contains("operator-b_1.redb cannot be read"), "{text}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let text = Store::open(&file, "c:1").unwrap_err().to_string();
        assert!(text.contains("cannot make the data directory"), "{text}");
    }
}
