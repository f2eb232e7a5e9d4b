//! Where the program under test is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// The `rollcall` program: `ROLLCALL_BIN` if set, else built (or found up to date) beside the running test.
///
/// # Panics
/// It cannot be found or built.
pub fn rollcall() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match find() {
        Ok(path) => path,
        Err(error) => panic!("no rollcall program, set ROLLCALL_BIN: {error:#}"),
    })
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ROLLCALL_BIN").filter(|p| !p.is_empty()) {
        let path = PathBuf::from(path);
        ensure!(
            path.is_file(),
            "ROLLCALL_BIN names {}, which is no file",
            path.display()
        );
        return Ok(path);
    }
    // Tests run as target/<profile>/deps/<name>.
    let test = std::env::current_exe()?;
    let out = test
        .ancestors()
        .nth(2)
        .context("the test program is not in a target directory")?;
    let profile = match out.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = out.parent().context("no target directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "rollcall-server",
            "--bin",
            "rollcall",
            "--profile",
            profile,
        ])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(target)
        .status()?;
    ensure!(status.success(), "cargo build ended with {status}");
    let path = out.join("rollcall");
    ensure!(path.is_file(), "{} was not built", path.display());
    Ok(path)
}
