//! A disk that can hang: every sync of the process on it waits, as with a device that does not answer. Or it is full, and
//! every sync fails. It takes no privileges: a library that is loaded before the C library (`disk.c`, built with the compiler that links Rust programs
//! too) stands between the process and the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::binary;
use crate::model::unique;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/disk.c");

/// The disk of one node.
#[derive(Debug)]
pub struct Disk {
    library: PathBuf,
    /// While this file exists the disk hangs.
    hangs_while: PathBuf,
    /// While this file exists the disk is full.
    full_while: PathBuf,
}

impl Disk {
    /// Prepares a disk that works; its files are in `dir`.
    ///
    /// # Errors
    /// There is no C compiler, or the directory cannot be written.
    pub fn prepare(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let disk = Disk {
            library: dir.join(unique("disk") + ".so"),
            hangs_while: dir.join(unique("disk-hangs")),
            full_while: dir.join(unique("disk-full")),
        };
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&disk.library)
            .arg(SOURCE);
        let status = binary::spawn(&mut compiler).context("no C compiler")?.wait()?;
        ensure!(status.success(), "cc ended with {status}");
        Ok(disk)
    }

    /// From now on no sync comes back.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn hang(&self) -> Result<()> {
        Ok(std::fs::write(&self.hangs_while, "")?)
    }

    /// The disk goes on.
    ///
    /// # Errors
    /// It did not hang.
    pub fn go_on(&self) -> Result<()> {
        Ok(std::fs::remove_file(&self.hangs_while)?)
    }

    /// From now on there is no room.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn fill(&self) -> Result<()> {
        Ok(std::fs::write(&self.full_while, "")?)
    }

    /// There is room again.
    ///
    /// # Errors
    /// The disk was not full.
    pub fn empty(&self) -> Result<()> {
        Ok(std::fs::remove_file(&self.full_while)?)
    }

    pub(crate) fn put_under(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("DISK_HANGS_WHILE", &self.hangs_while)
            .env("DISK_FULL_WHILE", &self.full_while);
    }
}
