//! Lists of members as text, in the form known as `cluster.conf`: in a file, and from an address server.

use std::io::Read;

/// Largest list that is read, in bytes.
pub const MAX_TEXT: usize = 64 << 10;

/// One member as written, and the line that it is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Line, from 1; `None` where the list has no lines that anybody has written.
    pub line: Option<usize>,
    /// `host:port`, or without the port.
    pub text: String,
}

/// Reads the file at `path`.
///
/// # Errors
/// Why it cannot be read: it is not there, is too large, or is no text.
pub fn read(path: &str) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot read the file {path}: {error}");
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(MAX_TEXT as u64 + 1)
        .read_to_string(&mut text)
        .map_err(cannot)?;
    if text.len() > MAX_TEXT {
        return Err(format!("the file {path} is larger than {MAX_TEXT} bytes"));
    }
    Ok(text)
}

/// The members in a text: one or more a line, separated by commas; `#` starts a comment, what follows a `?` is not
/// read. Line ends of any system, and a mark at the start that says UTF-8, do no harm.
pub fn parse(text: &str) -> Vec<Entry> {
    let lines = text.trim_start_matches('\u{feff}').lines().zip(1..);
    lines
        .flat_map(|(line, number)| {
            let entries = line.split('#').next().unwrap_or_default().split(',');
            entries.map(move |entry| (entry, number))
        })
        .map(|(entry, line)| Entry {
            line: Some(line),
            text: entry.split('?').next().unwrap_or_default().trim().to_owned(),
        })
        .filter(|entry| !entry.text.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_foreign_line_ends_do_no_harm() {
        let text = "\u{feff}# members\r\n10.0.0.1:8848\r\n\r\nhost-2 # no port\r\n[::1]:8868, 10.0.0.4:8848?raft_port=1\n";
        let entries = parse(text);
        let found: Vec<_> = entries
            .iter()
            .map(|e| (e.line.unwrap_or_default(), e.text.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                (2, "10.0.0.1:8848"),
                (4, "host-2"),
                (5, "[::1]:8868"),
                (5, "10.0.0.4:8848")
            ]
        );
        assert!(parse("").is_empty());
        assert!(parse("# only\n , ,\n?raft_port=1\n").is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_a_list_says_why() {
        let path = std::env::temp_dir().join(format!("rollcall-member-file-{}", std::process::id()));
        let path = path.to_str().unwrap();
        assert!(read(path).unwrap_err().starts_with("cannot read the file "));
        std::fs::write(path, vec![b'a'; MAX_TEXT + 1]).unwrap();
        assert!(read(path).unwrap_err().ends_with("is larger than 65536 bytes"));
        std::fs::write(path, [0xff, 0xfe]).unwrap();
        assert!(read(path).unwrap_err().starts_with("cannot read the file "));
        std::fs::write(path, "a:1").unwrap();
        assert_eq!(read(path).as_deref(), Ok("a:1"));
        std::fs::remove_file(path).unwrap();
    }
}
