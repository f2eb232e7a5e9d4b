//! Where the program under test is.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

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

/// A command that runs the program, without the `ROLLCALL_` variables of this process.
pub fn command() -> Command {
    without_settings(Command::new(rollcall()))
}

/// As [`command`], in a network namespace, which takes root.
pub fn command_in(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(rollcall());
    without_settings(command)
}

/// As [`command`], of a process that starts with SIGHUP ignored, as under `nohup`, or not, whatever holds here.
pub fn command_with_hangup(is_ignored: bool) -> Command {
    let mut command = Command::new("env");
    let how = if is_ignored { "ignore" } else { "default" };
    command.arg(format!("--{how}-signal=HUP")).arg(rollcall());
    without_settings(command)
}

fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ROLLCALL_") {
            command.env_remove(name);
        }
    }
    command
}

/// Starts a process. Until a child has replaced itself by its program it holds all sockets of this process open, so
/// nothing may be checked for being free meanwhile: see [`while_nothing_starts`].
///
/// # Errors
/// It cannot be started.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    while_nothing_starts(|| command.spawn())
}

/// Does something while no process is being started.
pub fn while_nothing_starts<R>(action: impl FnOnce() -> R) -> R {
    static STARTING: Mutex<()> = Mutex::new(());
    let _guard = STARTING.lock();
    action()
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
