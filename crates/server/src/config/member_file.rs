//! The file that lists the members, in the form known as `cluster.conf`.

use super::ConfigError;

/// Reads the members in the file at `path`, as written.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &str, source_name: &str) -> Result<Vec<String>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        ConfigError::new(
            "member_file",
            source_name,
            format!("cannot read the file {path}: {error}"),
        )
    })?;
    Ok(parse(&text))
}

/// The members in a text: one or more a line, separated by commas; `#` starts a comment, what follows a `?` is not
/// read. Line ends of any system, and a mark at the start that says UTF-8, do no harm.
pub fn parse(text: &str) -> Vec<String> {
    text.trim_start_matches('\u{feff}')
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().split(','))
        .map(|entry| entry.split('?').next().unwrap_or_default().trim())
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_foreign_line_ends_do_no_harm() {
        let text = "\u{feff}# members\r\n10.0.0.1:8848\r\n\r\nhost-2 # no port\r\n[::1]:8868, 10.0.0.4:8848?raft_port=1\n";
        assert_eq!(
            parse(text),
            ["10.0.0.1:8848", "host-2", "[::1]:8868", "10.0.0.4:8848"]
        );
        assert!(parse("").is_empty());
    }
}
