//! Forms that come in parts (`multipart/form-data`), as far as registrations need them: text fields, no files.

use smol_str::SmolStr;

/// The boundary that a content type names.
pub fn boundary(content_type: &str) -> Option<&str> {
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("boundary")
            .then(|| value.trim().trim_matches('"'))
    })
}

/// The text fields of a body; `None` when it is malformed or not UTF-8.
pub fn fields(body: &[u8], boundary: &str) -> Option<Vec<(SmolStr, SmolStr)>> {
    let text = std::str::from_utf8(body).ok()?;
    let mark = format!("--{boundary}");
    let mut fields = Vec::new();
    let mut parts = text.split(mark.as_str());
    parts.next()?; // What stands before the first mark.
    for part in parts {
        if part.starts_with("--") {
            return Some(fields);
        }
        let (head, value) = part.split_once("\r\n\r\n")?;
        if let Some(name) = field_name(head) {
            fields.push((
                SmolStr::new(name),
                SmolStr::new(value.strip_suffix("\r\n").unwrap_or(value)),
            ));
        }
    }
    None
}

fn field_name(head: &str) -> Option<&str> {
    let line = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("content-disposition:"))?;
    line.split(';').find_map(|parameter| {
        parameter
            .trim()
            .strip_prefix("name=")
            .map(|name| name.trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fields_are_read() {
        let body = "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n2\r\n--x\r\ncontent-disposition: form-data; name=b\r\nContent-Type: text/plain\r\n\r\n\r\n--x--\r\n";
        assert_eq!(
            fields(body.as_bytes(), "x"),
            Some(vec![("a".into(), "1\r\n2".into()), ("b".into(), "".into())])
        );
        assert_eq!(
            boundary("multipart/form-data; charset=utf-8; boundary=\"x y\""),
            Some("x y")
        );
    }

    #[test]
    fn a_body_without_an_end_is_refused() {
        assert_eq!(
            fields(b"--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1", "x"),
            None
        );
        assert_eq!(fields(b"", "x"), None);
    }
}
