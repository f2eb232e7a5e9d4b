//! Ends processes and removes directories whose test process is gone, however it went: a small shell waits for the end
//! of a pipe that only this process holds.

use std::fmt::Display;
use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::binary;

const SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=; dirs=
without() { kept=; for one in $1; do [ "$one" = "$2" ] || kept="$kept $one"; done; }
while read -r op what; do
  case $op in
    +pid) pids="$pids $what" ;;
    -pid) without "$pids" "$what"; pids=$kept ;;
    +dir) dirs="$dirs $what" ;;
    -dir) without "$dirs" "$what"; dirs=$kept ;;
  esac
done
for pid in $pids; do kill -9 "$pid"; done
for dir in $dirs; do rm -rf "$dir"; done
"#;

fn tell(op: &str, what: impl Display) {
    static PIPE: OnceLock<Option<Mutex<ChildStdin>>> = OnceLock::new();
    let start = || {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        binary::spawn(&mut shell)
            .ok()
            .and_then(|mut child| child.stdin.take())
            .map(Mutex::new)
    };
    if let Some(pipe) = PIPE.get_or_init(start) {
        // A reaper that is gone reaps nothing; the test goes on.
        let _ = writeln!(pipe.lock(), "{op} {what}");
    }
}

/// Kills this process when the test process ends.
pub fn watch_pid(pid: u32) {
    tell("+pid", pid);
}

/// The process has ended.
pub fn forget_pid(pid: u32) {
    tell("-pid", pid);
}

/// Removes this directory when the test process ends.
pub fn watch_dir(dir: &std::path::Path) {
    tell("+dir", dir.display());
}

/// The directory stays.
pub fn forget_dir(dir: &std::path::Path) {
    tell("-dir", dir.display());
}
