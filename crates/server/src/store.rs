//! Operator data on disk: one redb file in the data directory, written by one thread.
//!
//! What the node wants kept is merged by key while the disk is busy, so what waits is never more than there are keys, and
//! nobody waits for the disk. A write that fails is tried again. Between the answer to an operator and the end of the
//! commit lie a few milliseconds in which only the memory of the members has the change.
//!
//! What is read is checked: redb verifies its pages when the file is opened, and each record has a checksum of its own. A
//! file that is not as it was written stops the start, since a node that goes on without it would bring back what operators
//! have changed. redb panics on some damage, so whatever calls it goes through [`without_panic`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use rollcall_core::registry::change::RowOp;
use rollcall_core::{MemberId, Millis};
use rollcall_distro::codec;
use rollcall_distro::convert::row_op;
use rollcall_distro::message::Op;
use smol_str::SmolStr;
use tracing::{error, info};
use xxhash_rust::xxh3::Xxh3;

use crate::metrics::Counter;

/// By the key of the row or record: the checksum of both, and its newest version, encoded as members send it.
const OPERATOR: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("operator");
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(1);
/// A write that takes longer than this is slow: other members shall own this member's services.
const SLOW: Millis = Millis::secs(2);
/// How long the disk counts as slow after a slow write has ended.
const SLOW_AFTER: Millis = Millis::secs(10);

/// The store cannot be used; the text names the file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made.
    #[error("cannot make the data directory {path} (data_dir): {error}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Another process has the file open.
    #[error("{path} is in use by another process (data_dir)")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// There is no file yet, and none can be made.
    #[error("{path} cannot be made, the node needs room and the right to write there (data_dir): {error}")]
    NotMade {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: String,
    },
    /// The file is there, and this process may not read or not write it.
    #[error("{path} cannot be opened, the node needs the right to read and write there (data_dir): {error}")]
    NoRight {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The file is there and is not what was written.
    #[error("{path} cannot be read, move it away to start without what it holds: {error}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: String,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread of the store: {0}")]
    Thread(io::Error),
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
    /// Number of the write that is under way; 0 for none.
    under_way: AtomicU64,
    pace: Mutex<Pace>,
}

/// How fast the disk takes writes, as it looks to whoever looks from time to time.
#[derive(Debug, Default)]
struct Pace {
    /// Number of the write that was under way at the last look; 0 for none.
    seen: u64,
    /// Since when it is under way.
    since: Millis,
    slow_until: Millis,
}

impl Pace {
    /// Looks at the write that is under way and says whether the disk is slow.
    fn look(&mut self, under_way: u64, now: Millis) -> bool {
        if under_way != self.seen {
            (self.seen, self.since) = (under_way, now);
        }
        if under_way > 0 && now.since(self.since) > SLOW {
            self.slow_until = now + SLOW_AFTER;
        }
        now < self.slow_until
    }
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
        let path = dir.join(file_name(address));
        let (database, kept) = load(&path)?;
        info!(file = %path.display(), n_kept = kept.len(), "operator data");
        let store = Store::start(database, path, open_existing)?;
        Ok((store, kept))
    }

    /// Starts the thread that writes to `database`; after a failure, to what `reopen` makes of its path.
    fn start(
        database: Database,
        path: PathBuf,
        reopen: impl Fn(&Path) -> Result<Database, StoreError> + Send + 'static,
    ) -> Result<Store, StoreError> {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn({
                let shared = shared.clone();
                move || write_loop(database, &shared, &path, reopen)
            })
            .map_err(StoreError::Thread)?;
        Ok(Store {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Takes what shall be kept. Never waits.
    pub fn keep(&self, ops: &[RowOp]) {
        let mut waiting = self.shared.waiting.lock();
        for op in ops {
            if let Some(key) = key_of(op)
                // So that the file can be read again after a step back to the version before.
                && let Ok(bytes) = codec::encode_as(codec::OLDEST_FORMAT, &Op::from(op))
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

    /// True while a write takes far too long, or one has just done so. Has to be asked about once a second.
    pub fn is_slow(&self, now: Millis) -> bool {
        let under_way = self.shared.under_way.load(Ordering::Relaxed);
        self.shared.pace.lock().look(under_way, now)
    }

    /// Writes what waits and ends. Blocks until that is done, or has failed once more: what is lost then is logged.
    pub fn close(&self) {
        self.shared.waiting.lock().is_closed = true;
        self.shared.is_wanted.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
            let n_lost = self.n_waiting();
            if n_lost > 0 {
                error!(
                    n_lost,
                    "rows and records of operator data could not be stored and are lost on this node"
                );
            }
        }
    }
}

/// What `work` returns, or the text with which it panicked.
fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // What a panic leaves half done is a database, and none is used again after one.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("redb panicked: {}", text.unwrap_or("no text"))
    })
}

fn damaged(path: &Path, error: impl ToString) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        error: error.to_string(),
    }
}

fn locked(path: &Path) -> StoreError {
    StoreError::Locked {
        path: path.to_owned(),
    }
}

fn file_name(address: &str) -> String {
    format!("operator-{}.redb", as_file_name(address))
}

/// A member's address as a part of the names of its files.
pub(crate) fn as_file_name(address: &str) -> String {
    address.replace([':', '/'], "_")
}

/// Operator files in `dir` that belong to none of these members.
pub fn strange_files(dir: &Path, members: &[SmolStr]) -> Vec<PathBuf> {
    let is_other = |file: OsString| {
        let file = file.to_string_lossy();
        let is_members = members.iter().any(|address| file == file_name(address));
        !is_members && file.starts_with("operator-") && file.ends_with(".redb")
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut others: Vec<_> = entries
        .filter(|entry| is_other(entry.file_name()))
        .map(|entry| entry.path())
        .collect();
    others.sort();
    others
}

/// Opens the file, or makes it if there is none, and reads it.
fn load(path: &Path) -> Result<(Database, Vec<RowOp>), StoreError> {
    match std::fs::metadata(path) {
        Ok(file) if file.len() == 0 => return Err(damaged(path, "it is empty")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let unfinished = path.with_extension("new");
            let error = match without_panic(|| create(&unfinished, path)) {
                Ok(Ok(database)) => return Ok((database, Vec::new())),
                Ok(Err(redb::Error::DatabaseAlreadyOpen)) => return Err(locked(path)),
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic,
            };
            let _ = std::fs::remove_file(&unfinished); // What was begun is of no use; mostly the disk is full.
            return Err(StoreError::NotMade {
                path: path.to_owned(),
                error,
            });
        }
        Err(error) => return Err(not_opened(path, error)),
    }
    without_panic(|| {
        let database = open_existing(path)?;
        let kept = read(&database).map_err(|error| damaged(path, error))?;
        Ok((database, kept))
    })
    .unwrap_or_else(|panic| Err(damaged(path, panic)))
}

/// Opens the file after reading and checking all of it.
fn open_existing(path: &Path) -> Result<Database, StoreError> {
    let database = Database::builder().set_check_integrity_on_open(true).open(path);
    database.map_err(|error| refusal(path, error))
}

/// Makes the file, under the name `unfinished` at first. It gets its name when it is whole, so that a process killed meanwhile leaves none that looks damaged.
fn create(unfinished: &Path, path: &Path) -> Result<Database, redb::Error> {
    match std::fs::remove_file(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let database = Database::create(unfinished)?;
    std::fs::rename(unfinished, path)?;
    if let Some(dir) = path.parent() {
        std::fs::File::open(dir)?.sync_all()?;
    }
    Ok(database)
}

fn refusal(path: &Path, error: redb::DatabaseError) -> StoreError {
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => locked(path),
        redb::DatabaseError::Storage(redb::StorageError::Io(error)) => not_opened(path, error),
        error => damaged(path, error),
    }
}

/// Without the right to it nothing is known against the file.
fn not_opened(path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreError::NoRight {
            path: path.to_owned(),
            error,
        },
        _ => damaged(path, error),
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
        let (key, value) = entry.map_err(|e| e.to_string())?;
        let op = unsealed(key.value(), value.value())
            .map_err(|error| format!("a record of a {}: {error}", kind_of(key.value())))?;
        kept.push(op);
    }
    Ok(kept)
}

/// Checksum of a record: XXH3-64 of key and value.
fn checksum(key: &[u8], bytes: &[u8]) -> [u8; 8] {
    let mut hasher = Xxh3::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.digest().to_be_bytes()
}

/// The value in the file: the checksum, then the bytes.
fn sealed(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    [&checksum(key, bytes), bytes].concat()
}

/// What a value in the file says, if it is as it was written.
fn unsealed(key: &[u8], value: &[u8]) -> Result<RowOp, String> {
    match value.split_first_chunk() {
        Some((sum, bytes)) if *sum == checksum(key, bytes) => {
            let op: Op = codec::decode(bytes).map_err(|e| e.to_string())?;
            // Only rows of connections belong to the member that sent them, and none of these is here.
            Ok(row_op(op, MemberId(0)))
        }
        _ => Err("the checksum is wrong".into()),
    }
}

fn write_loop(
    database: Database,
    shared: &Shared,
    path: &Path,
    reopen: impl Fn(&Path) -> Result<Database, StoreError>,
) {
    let mut database = Some(database);
    let mut n_writes = 0;
    loop {
        let mut waiting = shared.waiting.lock();
        while waiting.batch.is_empty() && !waiting.is_closed {
            shared.is_wanted.wait(&mut waiting);
        }
        let is_last = waiting.is_closed;
        let batch = std::mem::take(&mut waiting.batch);
        drop(waiting);
        n_writes += 1;
        shared.under_way.store(n_writes, Ordering::Relaxed);
        let written = without_panic(|| {
            let open = match &mut database {
                Some(open) => open,
                closed => closed.insert(reopen(path).map_err(|e| e.to_string())?),
            };
            write(open, &batch).map_err(|e| e.to_string())
        });
        shared.under_way.store(0, Ordering::Relaxed);
        if let Err(reason) = written.flatten() {
            error!(file = %path.display(), %reason, "cannot keep operator data on disk");
            shared.failures.increment();
            // After a failure redb refuses all further work until the file is opened anew.
            let failed = database.take();
            let _ = without_panic(|| drop(failed));
            let mut waiting = shared.waiting.lock();
            for (key, bytes) in batch {
                waiting.batch.entry(key).or_insert(bytes);
            }
            if !is_last {
                shared.is_wanted.wait_for(&mut waiting, RETRY);
            }
        }
        if is_last {
            let _ = without_panic(|| drop(database)); // All that was written is committed.
            return;
        }
    }
}

fn write(database: &Database, batch: &Batch) -> Result<(), redb::Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut transaction = database.begin_write()?;
    // In one phase, a commit whose pages are damaged later is taken for one that was cut off, and is lost without a word.
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(OPERATOR)?;
        for (key, bytes) in batch {
            table.insert(key.as_slice(), sealed(key, bytes).as_slice())?;
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

/// What a key of the file is for, by the letter it starts with.
fn kind_of(key: &[u8]) -> &'static str {
    match key.first() {
        Some(b'o') => "row",
        Some(b'n') => "namespace",
        Some(b's') => "service",
        Some(b'c') => "cluster",
        Some(b'q') => "quarantine",
        Some(b'w') => "switch",
        _ => "kind that is not known",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::AtomicBool;

    use redb::StorageBackend;
    use redb::backends::FileBackend;
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
    fn a_disk_is_slow_while_a_write_hangs_and_for_a_while_after_it() {
        let mut pace = Pace::default();
        assert!(!pace.look(0, Millis::secs(1)));
        assert!(!pace.look(1, Millis::secs(2)));
        assert!(!pace.look(1, Millis::secs(4)));
        assert!(pace.look(1, Millis::secs(5)));
        assert!(pace.look(2, Millis::secs(14)));
        assert!(
            !pace.look(3, Millis::secs(15)),
            "many quick writes are not a slow one"
        );
        assert!(!pace.look(4, Millis::secs(18)));
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

    #[test]
    fn an_empty_file_is_damage_and_an_unfinished_new_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("operator-a_1.redb");
        std::fs::write(&file, "").unwrap();
        let text = Store::open(dir.path(), "a:1").unwrap_err().to_string();
        assert!(text.contains("operator-a_1.redb cannot be read"), "{text}");
        assert!(text.ends_with("it is empty"), "{text}");
        std::fs::remove_file(&file).unwrap();
        let unfinished = file.with_extension("new");
        std::fs::write(&unfinished, "cut off").unwrap();
        let (store, kept) = Store::open(dir.path(), "a:1").unwrap();
        assert_eq!(kept, []);
        store.close();
        assert_eq!((file.exists(), unfinished.exists()), (true, false));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_not_said_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let in_the_way = dir.path().join("operator-a_1.new");
        std::fs::create_dir(&in_the_way).unwrap();
        let text = Store::open(dir.path(), "a:1").unwrap_err().to_string();
        assert!(text.contains("operator-a_1.redb cannot be made"), "{text}");
        assert!(!text.contains("move it away"), "{text}");
        std::fs::remove_dir(&in_the_way).unwrap();
        Store::open(dir.path(), "a:1").unwrap().0.close();
    }

    #[test]
    fn a_file_that_may_not_be_written_is_not_called_damaged() {
        let path = Path::new("data/operator-a_1.redb");
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
            let error = redb::StorageError::Io(kind.into());
            let text = refusal(path, error.into()).to_string();
            let right = "operator-a_1.redb cannot be opened, the node needs the right to read and write there (data_dir)";
            assert!(text.contains(right), "{text}");
            assert!(!text.contains("move it away"), "{text}");
        }
        let error = redb::StorageError::Io(io::Error::other("broken"));
        let text = refusal(path, error.into()).to_string();
        assert!(text.contains("operator-a_1.redb cannot be read"), "{text}");
    }

    #[test]
    fn a_damaged_file_is_refused_or_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let ops: Vec<_> = (10..50)
            .map(|i| RowOp::Record {
                key: RecordKey::Switch(format!("switch-{i}").into()),
                stamp: Stamp {
                    time: i,
                    member: MemberId(7),
                },
                record: Some(Record::Switch(format!("value-{i}").into())),
            })
            .collect();
        let (store, _) = Store::open(dir.path(), "a:1").unwrap();
        for op in &ops {
            store.keep(std::slice::from_ref(op));
        }
        store.close();
        let file = dir.path().join("operator-a_1.redb");
        let good = std::fs::read(&file).unwrap();

        let mut n_refused = 0;
        let mut check = |what: &str, bytes: &[u8], is_damage: bool| {
            std::fs::write(&file, bytes).unwrap();
            match Store::open(dir.path(), "a:1") {
                Ok((store, kept)) => {
                    store.close();
                    assert!(!is_damage, "{what}: read as good");
                    assert_eq!(kept, ops, "{what}");
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        text.contains("operator-a_1.redb cannot be read"),
                        "{what}: {text}"
                    );
                    n_refused += 1;
                }
            }
        };
        check("nothing", &good, false);
        let header = 0..320;
        let used = (320..good.len()).filter(|&at| good[at] != 0);
        for at in header.chain(used.step_by(97)) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            check(&format!("a bit of byte {at}"), &bytes, false);
        }
        for length in [1, 100, 4096, good.len() / 2, good.len() - 1] {
            check(&format!("{length} bytes"), &good[..length], true);
        }
        assert!(n_refused > 50, "{n_refused}");
    }

    #[test]
    fn a_record_whose_checksum_is_wrong_is_refused_by_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), "a:1").unwrap();
        store.close();
        let op = switch("true", 1);
        let key = key_of(&op).unwrap();
        let value = sealed(&key, &codec::encode(&Op::from(&op)).unwrap());
        assert_eq!(unsealed(&key, &value), Ok(op));
        for at in 0..value.len() {
            let mut value = value.clone();
            value[at] ^= 1;
            assert_eq!(
                unsealed(&key, &value),
                Err("the checksum is wrong".into()),
                "{at}"
            );
        }
        let database = open_existing(&dir.path().join("operator-a_1.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut table = transaction.open_table(OPERATOR).unwrap();
        table.insert(b"w\0other".as_slice(), value.as_slice()).unwrap();
        drop(table);
        transaction.commit().unwrap();
        drop(database);
        let text = Store::open(dir.path(), "a:1").unwrap_err().to_string();
        assert!(text.contains("operator-a_1.redb cannot be read"), "{text}");
        assert!(
            text.ends_with("a record of a switch: the checksum is wrong"),
            "{text}"
        );
    }

    /// A file on a disk that fails from some time on, or that redb panics over.
    #[derive(Debug)]
    struct Faulty {
        file: FileBackend,
        is_broken: Arc<AtomicBool>,
        is_panic: bool,
    }

    impl StorageBackend for Faulty {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.file.read(offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.file.sync_data()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            if self.is_broken.load(Ordering::Relaxed) {
                assert!(!self.is_panic, "the disk is broken");
                return Err(io::Error::other("the disk is broken"));
            }
            self.file.write(offset, data)
        }
    }

    #[test]
    fn a_write_that_fails_or_panics_is_counted_and_tried_again() {
        for is_panic in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (store, _) = Store::open(dir.path(), "a:1").unwrap();
            store.close();
            let path = dir.path().join("operator-a_1.redb");
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            let is_broken = Arc::new(AtomicBool::new(false));
            let backend = Faulty {
                file: FileBackend::new(file).unwrap(),
                is_broken: is_broken.clone(),
                is_panic,
            };
            let database = Database::builder().create_with_backend(backend).unwrap();
            is_broken.store(true, Ordering::Relaxed);
            let store = Store::start(database, path, open_existing).unwrap();
            store.keep(&[switch("true", 1)]);
            while store.n_failures() == 0 {
                std::thread::yield_now();
            }
            store.close();
            assert_eq!((store.n_waiting(), store.n_failures()), (0, 1));
            let (store, kept) = Store::open(dir.path(), "a:1").unwrap();
            assert_eq!(kept, [switch("true", 1)]);
            store.close();
        }
    }

    #[test]
    fn the_files_of_other_addresses_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), "a:1").unwrap();
        store.close();
        std::fs::write(dir.path().join("operator-b_1.new"), "").unwrap();
        let strange = |members: &[&str]| {
            let members: Vec<SmolStr> = members.iter().map(SmolStr::new).collect();
            strange_files(dir.path(), &members)
        };
        assert_eq!(strange(&["a:1", "b:1"]), [] as [PathBuf; 0]);
        assert_eq!(strange(&["b:1"]), [dir.path().join("operator-a_1.redb")]);
    }
}
