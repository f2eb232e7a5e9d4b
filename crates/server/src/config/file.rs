//! Settings from a TOML file: one key a line, no tables.

use toml::{Table, Value};

use super::ConfigError;
use super::keys::Setting;

/// Reads the file at `path`.
///
/// # Errors
/// The file cannot be read, is no TOML, or holds something that is no simple value.
pub fn read(path: &str) -> Result<Vec<Setting>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::new("config", path, format!("cannot read the file: {error}")))?;
    parse(&text, path)
}

fn parse(text: &str, path: &str) -> Result<Vec<Setting>, ConfigError> {
    let source_name = format!("file {path}");
    let table: Table = text
        .trim_start_matches('\u{feff}')
        .parse()
        .map_err(|error: toml::de::Error| ConfigError::new("config", &source_name, error.to_string()))?;
    let setting = |(key, value): (String, Value)| match text_of(&value) {
        Ok(text) => Ok(Setting {
            key,
            text,
            source_name: source_name.clone(),
        }),
        Err(rule) => Err(ConfigError::new(key, &source_name, rule)),
    };
    table.into_iter().map(setting).collect()
}

/// The text of a value. A fraction goes on as it stands, so that the key itself says what it wants instead.
fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(_) | Value::Boolean(_) | Value::Float(_) => Ok(value.to_string()),
        Value::Array(values) => {
            let texts: Result<Vec<_>, _> = values.iter().map(text_in_list).collect();
            Ok(texts?.join(","))
        }
        Value::Datetime(_) | Value::Table(_) => Err("want a text, a number, or a list of texts".to_owned()),
    }
}

fn text_in_list(value: &Value) -> Result<&str, String> {
    let rule = || format!("{value} in the list is no text, want texts only");
    value.as_str().ok_or_else(rule)
}

#[cfg(test)]
mod tests {
    use super::super::keys::Draft;
    use super::*;

    #[test]
    fn numbers_texts_and_lists_are_read() {
        let settings = parse(
            "port = 8850\nmembers = [\"a:1\", \"b:2\"]\ngate_limit = \"5s\"\n",
            "f",
        )
        .unwrap_or_default();
        let texts: Vec<_> = settings
            .iter()
            .map(|s| (s.key.as_str(), s.text.as_str()))
            .collect();
        assert_eq!(
            texts,
            [("gate_limit", "5s"), ("members", "a:1,b:2"), ("port", "8850")]
        );
    }

    #[test]
    fn a_fraction_is_refused_by_the_rule_of_its_key() {
        for (line, rule) in [
            ("port = 1.5", "\"1.5\" is no whole number from 1 to 65535"),
            ("port = 8848.0", "\"8848.0\" is no whole number from 1 to 65535"),
            (
                "gate_limit = 1.5",
                "\"1.5\" is no time, want a whole number and a unit such as 500ms, 10s, 2m or 24h",
            ),
        ] {
            let settings = parse(line, "f").unwrap_or_default();
            let error = settings.first().and_then(|s| Draft::default().set(s).err());
            assert_eq!(error.map(|error| error.rule).as_deref(), Some(rule), "{line}");
        }
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        let error = |text: &str| {
            parse(text, "f.toml")
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default()
        };
        assert!(error("port = ").starts_with("config (file f.toml): "));
        assert_eq!(
            error("[port]\na = 1"),
            "port (file f.toml): want a text, a number, or a list of texts"
        );
        for (list, other) in [
            ("[\"127.0.0.1:8848\", 3]", "3"),
            ("[true]", "true"),
            ("[\"a:1\", [\"b:1\"]]", "[\"b:1\"]"),
        ] {
            assert_eq!(
                error(&format!("port = 8848\nmembers = {list}")),
                format!("members (file f.toml): {other} in the list is no text, want texts only")
            );
        }
        assert!(
            read("/nowhere/f.toml").is_err_and(|error| error.to_string().contains("cannot read the file"))
        );
    }
}
