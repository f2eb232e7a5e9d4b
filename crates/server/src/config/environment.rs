//! Settings from environment variables.

use super::ConfigError;
use super::keys::{KEYS, Setting};

/// Start of the names of all variables.
pub const PREFIX: &str = "ROLLCALL_";

/// What the environment sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Environment {
    /// Path of the file.
    pub config: Option<String>,
    /// Keys.
    pub settings: Vec<Setting>,
}

/// Picks the settings out of all variables.
///
/// # Errors
/// A variable that looks like a setting and is none.
pub fn settings(variables: impl IntoIterator<Item = (String, String)>) -> Result<Environment, ConfigError> {
    let mut environment = Environment::default();
    for (variable, text) in variables {
        let Some(name) = variable.strip_prefix(PREFIX) else {
            continue;
        };
        if is_from_orchestrator(name, &text) {
            continue;
        }
        if name == "CONFIG" {
            environment.config = Some(text);
            continue;
        }
        let source_name = format!("environment variable {variable}");
        let Some(key) = KEYS.iter().find(|key| key.name.to_uppercase() == name) else {
            return Err(ConfigError::new(
                name.to_lowercase(),
                source_name,
                "there is no such key",
            ));
        };
        environment.settings.push(Setting {
            key: key.name.to_owned(),
            text,
            source_name,
        });
    }
    Ok(environment)
}

/// Orchestrators set variables like `ROLLCALL_PORT=tcp://10.0.0.1:8848` for a service that is named like this one;
/// `ROLLCALL_TEST_...` belongs to tests.
fn is_from_orchestrator(name: &str, text: &str) -> bool {
    name.starts_with("TEST_")
        || name == "SERVICE_HOST"
        || name.starts_with("SERVICE_PORT")
        || text.starts_with("tcp://")
        || text.starts_with("udp://")
        || name
            .strip_prefix("PORT_")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        settings(
            variables
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned())),
        )
    }

    #[test]
    fn only_variables_with_the_prefix_count() {
        let read = read(&[
            ("PATH", "/bin"),
            ("ROLLCALL_GRPC_PORT", "9000"),
            ("ROLLCALL_CONFIG", "/x"),
        ])
        .unwrap_or_default();
        assert_eq!(read.config.as_deref(), Some("/x"));
        assert_eq!(
            read.settings.iter().map(|s| s.key.as_str()).collect::<Vec<_>>(),
            ["grpc_port"]
        );
    }

    #[test]
    fn an_unknown_variable_is_an_error_and_an_orchestrators_is_not() {
        let error = read(&[("ROLLCALL_COLOUR", "red")])
            .err()
            .map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("colour (environment variable ROLLCALL_COLOUR): there is no such key")
        );
        for (name, text) in [
            ("ROLLCALL_PORT", "tcp://10.0.0.1:8848"),
            ("ROLLCALL_SERVICE_HOST", "10.0.0.1"),
            ("ROLLCALL_PORT_8848_TCP_ADDR", "10.0.0.1"),
        ] {
            assert_eq!(read(&[(name, text)]), Ok(Environment::default()), "{name}");
        }
    }
}
