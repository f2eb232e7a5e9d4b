//! The copy of ephemeral instances on disk (`ephemeral_copy`): one file in the data directory, written and read by a thread
//! of its own, so that a slow disk holds nobody up.
//!
//! The file is made beside the last one and takes its name when it is whole and on the disk. It is a head, records with a
//! length and a checksum each, and an end that tells their number, so that no part of a file is taken for all of it. Each
//! record is a frame as members send it. What cannot be read is no reason not to start: it is left alone and said so in
//! the log.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rollcall_core::Millis;
use rollcall_distro::CopyTime;
use rollcall_distro::codec;
use rollcall_distro::message::Frame;
use rollcall_node::action::Actions;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use crate::executor::Executor;
use crate::metrics::Counter;
use crate::store;

/// First bytes of a file; the last of them is the version of its form.
const MAGIC: [u8; 8] = *b"RCCOPY\0\x02";
/// Largest file, in bytes.
const MAX_FILE: u64 = 4 << 30;
/// Largest record, in bytes: what a member would take as a frame.
const MAX_RECORD: u32 = (codec::MAX_BODY + 64) as u32;
const BUFFER: usize = 256 << 10;
/// A copy that is not written after this time is as good as none: the disk hangs, or is far too slow.
const OVERDUE: Millis = Millis::secs(30);

/// Why a copy is not used, or could not be written.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is no copy, or of a form that is not read here")]
    Head,
    #[error("record {0} is damaged")]
    Record(u64),
    #[error("it is cut off")]
    CutOff,
    #[error("bytes follow its end")]
    Trailing,
    #[error("it was written {} s ago, by the wall clock, which is too old", .0 / 1000)]
    Old(u64),
    #[error("it is larger than {MAX_FILE} bytes")]
    TooLarge,
    #[error("a record cannot be encoded: {0}")]
    Encode(#[from] codec::CodecError),
}

/// The file, and what became of it so far.
#[derive(Debug)]
pub struct EphemeralCopy {
    path: PathBuf,
    /// Wall time of the last copy that was written, in milliseconds since the Unix epoch; 0 before the first.
    written_at: AtomicU64,
    size: AtomicU64,
    failures: Counter,
    pace: Mutex<Pace>,
}

/// How writing goes.
#[derive(Debug, Default)]
struct Pace {
    /// Since when a copy is being written.
    since: Option<Millis>,
    /// The last one could not be written.
    has_failed: bool,
}

impl Pace {
    fn is_failing(&self, now: Millis) -> bool {
        self.has_failed || self.since.is_some_and(|since| now.since(since) > OVERDUE)
    }
}

impl EphemeralCopy {
    /// The copy of the member `address` in the directory `dir`, which is there.
    pub fn new(dir: &Path, address: &str) -> Self {
        EphemeralCopy {
            path: dir.join(format!("ephemeral-{}.copy", store::as_file_name(address))),
            written_at: AtomicU64::new(0),
            size: AtomicU64::new(0),
            failures: Counter::default(),
            pace: Mutex::default(),
        }
    }

    /// Wall time of the last copy that this process wrote; `None` before the first.
    pub fn written_at(&self) -> Option<Millis> {
        Some(Millis(self.written_at.load(Ordering::Relaxed))).filter(|at| at.0 > 0)
    }

    /// Size of the last copy that this process wrote, in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Copies that could not be written.
    pub fn n_failures(&self) -> u64 {
        self.failures.value()
    }

    /// True from a copy that could not be written, or takes longer than [`OVERDUE`], until the next one is written.
    pub fn is_failing(&self, now: Millis) -> bool {
        self.pace.lock().is_failing(now)
    }

    /// Writes a copy. Blocks.
    pub fn write(&self, exec: &Executor) {
        let now = exec.now();
        let begun = exec.node().copy_time(now);
        self.pace.lock().since = Some(now.mono);
        let written = write_file(&self.path, begun, exec.node().copy_parts());
        *self.pace.lock() = Pace {
            since: None,
            has_failed: written.is_err(),
        };
        match written {
            Ok(size) => {
                self.size.store(size, Ordering::Relaxed);
                self.written_at.store(begun.wall.0, Ordering::Relaxed);
            }
            Err(error) => {
                self.failures.increment();
                warn!(file = %self.path.display(), %error, "the copy of ephemeral instances cannot be written");
            }
        }
        exec.node().copy_written();
    }

    /// Hands the copy to the node if it is whole and young enough. Blocks.
    pub fn offer(&self, exec: &Executor) {
        let file = self.path.display();
        match self.hand_in(exec) {
            Ok(n_parts) => {
                info!(%file, n_parts, "cold start: offering the instances of the copy until their clients return")
            }
            Err(CopyError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                info!(%file, "cold start without a copy of ephemeral instances");
            }
            Err(error) => warn!(%file, %error, "cold start: the copy of ephemeral instances is not used"),
        }
        let mut actions = Actions::default();
        exec.node().copy_taken(exec.now(), &mut actions);
        exec.run(actions);
    }

    fn hand_in(&self, exec: &Executor) -> Result<u64, CopyError> {
        // All of it is looked at before any of it is used.
        let (begun, _) = read_file(&self.path, |_| {})?;
        let now = exec.now();
        if !exec.node().open_copy(begun, now) {
            return Err(CopyError::Old(now.wall.0.abs_diff(begun.wall.0)));
        }
        let (_, n_parts) = read_file(&self.path, |part| {
            let mut actions = Actions::default();
            exec.node().take_copy(part, exec.now(), &mut actions);
            exec.run(actions);
        })?;
        Ok(n_parts)
    }
}

/// Bytes of the head.
const HEAD: usize = 32;

/// The head: what it is, the time at which it was begun, and a checksum of both.
fn head(begun: CopyTime) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&begun.wall.0.to_le_bytes());
    head[16..24].copy_from_slice(&begun.hybrid.0.to_le_bytes());
    let checksum = xxh3_64(&head[..24]);
    head[24..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Writes the file and returns its size.
fn write_file(path: &Path, begun: CopyTime, parts: impl Iterator<Item = Frame>) -> Result<u64, CopyError> {
    let unfinished = path.with_extension("new");
    let mut out = BufWriter::with_capacity(BUFFER, File::create(&unfinished)?);
    out.write_all(&head(begun))?;
    let (mut size, mut n_parts) = (HEAD as u64, 0u64);
    for part in parts {
        let bytes = codec::encode(&part)?;
        size += bytes.len() as u64 + 12;
        if size > MAX_FILE {
            return Err(CopyError::TooLarge);
        }
        let length = u32::try_from(bytes.len()).map_err(|_| CopyError::TooLarge)?;
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&xxh3_64(&bytes).to_le_bytes())?;
        out.write_all(&bytes)?;
        n_parts += 1;
    }
    // No record has the length 0.
    out.write_all(&0u32.to_le_bytes())?;
    out.write_all(&n_parts.to_le_bytes())?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(size + 12)
}

/// Reads and checks the file, part by part. Returns when it was begun, and the number of parts.
fn read_file(path: &Path, mut take: impl FnMut(Frame)) -> Result<(CopyTime, u64), CopyError> {
    let mut file = BufReader::with_capacity(BUFFER, File::open(path)?);
    let found: [u8; HEAD] = bytes(&mut file)?;
    let [_, wall, hybrid, _]: [u64; 4] = std::array::from_fn(|word| {
        let bytes = &found[8 * word..];
        bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
    });
    let begun = CopyTime {
        wall: Millis(wall),
        hybrid: Millis(hybrid),
    };
    if found != head(begun) {
        return Err(CopyError::Head);
    }
    let mut n_parts = 0;
    loop {
        let length = u32::from_le_bytes(bytes(&mut file)?);
        let checksum = u64::from_le_bytes(bytes(&mut file)?);
        if length == 0 {
            if checksum != n_parts {
                return Err(CopyError::CutOff);
            }
            break;
        }
        if length > MAX_RECORD {
            return Err(CopyError::Record(n_parts));
        }
        let mut record = Vec::new();
        (&mut file).take(u64::from(length)).read_to_end(&mut record)?;
        if record.len() < length as usize {
            return Err(CopyError::CutOff);
        }
        if xxh3_64(&record) != checksum {
            return Err(CopyError::Record(n_parts));
        }
        take(codec::decode(&record).map_err(|_| CopyError::Record(n_parts))?);
        n_parts += 1;
    }
    match file.read(&mut [0])? {
        0 => Ok((begun, n_parts)),
        _ => Err(CopyError::Trailing),
    }
}

/// The next bytes of a file.
fn bytes<const N: usize>(file: &mut impl Read) -> Result<[u8; N], CopyError> {
    let mut bytes = [0; N];
    match file.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(CopyError::CutOff),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use rollcall_distro::message::Op;

    use super::*;

    fn part(origin: u64) -> Frame {
        Frame::Orphans {
            origin,
            remaining: 0,
            rows: vec![Op::ClientGone { client: origin }],
        }
    }

    fn begun(wall: u64) -> CopyTime {
        CopyTime {
            wall: Millis(wall),
            hybrid: Millis(wall + 1),
        }
    }

    fn read(path: &Path) -> Result<(CopyTime, Vec<Frame>), CopyError> {
        let mut parts = Vec::new();
        let (begun, n_parts) = read_file(path, |part| parts.push(part))?;
        assert_eq!(n_parts, parts.len() as u64);
        Ok((begun, parts))
    }

    #[test]
    fn a_copy_comes_back_as_it_was_written_and_replaces_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let copy = EphemeralCopy::new(dir.path(), "10.0.0.1:8848");
        for (wall, parts) in [(5, vec![part(1), part(2)]), (6, vec![]), (7, vec![part(3)])] {
            let size = write_file(&copy.path, begun(wall), parts.clone().into_iter()).unwrap();
            assert_eq!(size, std::fs::metadata(&copy.path).unwrap().len());
            assert_eq!(read(&copy.path).unwrap(), (begun(wall), parts));
        }
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn writing_fails_from_an_error_or_a_long_wait_until_a_copy_is_written() {
        let since = |ms| Some(Millis(ms));
        for (since, has_failed, is_failing) in [
            (None, false, false),
            (None, true, true),
            (since(1_000), false, false),
            (since(1_000), true, true),
            (since(999), false, true),
        ] {
            let pace = Pace { since, has_failed };
            assert_eq!(pace.is_failing(Millis(31_000)), is_failing, "{pace:?}");
        }
    }

    #[test]
    fn any_damage_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.copy");
        write_file(&path, begun(5), vec![part(1), part(2)].into_iter()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(read(&path).is_err(), "cut off after {length} bytes");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert!(read(&path).is_err(), "a bit of byte {at} is wrong");
        }
        std::fs::write(&path, [whole.as_slice(), b"x"].concat()).unwrap();
        assert!(matches!(read(&path), Err(CopyError::Trailing)));
    }
}
