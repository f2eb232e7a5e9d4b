//! Settings from the command line.

use clap::{Arg, ArgAction, Command};

use super::keys::{KEYS, Setting};

/// What the command line sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// Path of the file.
    pub config: Option<String>,
    /// Keys.
    pub settings: Vec<Setting>,
}

/// The command line: one flag for each key, and one for the file.
pub fn command() -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("path")
        .help("TOML file with settings; the environment and flags win over it")
        .action(ArgAction::Set);
    let mut command = Command::new("rollcall")
        .about("A service registry for clients of Nacos")
        .version(env!("CARGO_PKG_VERSION"))
        .arg(config);
    for key in KEYS {
        let help = format!(
            "{} [default: {}] [env: {}]",
            key.help,
            key.default,
            key.variable()
        );
        let arg = Arg::new(key.name)
            .long(key.flag())
            .value_name(key.unit)
            .help(help)
            .action(ArgAction::Set)
            .allow_hyphen_values(true);
        command = command.arg(arg);
    }
    command
}

/// Reads the command line, program name first.
///
/// # Errors
/// What is wrong, or the help text that was asked for; to be printed as it is.
pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Flags, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    let mut flags = Flags {
        config: matches.get_one::<String>("config").cloned(),
        settings: Vec::new(),
    };
    for key in KEYS {
        if let Some(text) = matches.get_one::<String>(key.name) {
            let source_name = format!("flag --{}", key.flag());
            flags.settings.push(Setting {
                key: key.name.to_owned(),
                text: text.clone(),
                source_name,
            });
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Flags, clap::Error> {
        parse(
            std::iter::once("rollcall")
                .chain(arguments.iter().copied())
                .map(Into::into),
        )
    }

    #[test]
    fn every_key_has_a_flag() {
        command().debug_assert();
        let flags = read(&["--grpc-port", "9000", "--config", "f", "--members=a:1,b:2"]).unwrap_or_default();
        assert_eq!(flags.config.as_deref(), Some("f"));
        let settings: Vec<_> = flags
            .settings
            .iter()
            .map(|s| (s.key.as_str(), s.text.as_str()))
            .collect();
        assert_eq!(settings, [("grpc_port", "9000"), ("members", "a:1,b:2")]);
    }

    #[test]
    fn an_unknown_flag_is_named() {
        assert!(read(&["--colour", "red"]).is_err_and(|error| error.to_string().contains("--colour")));
    }
}
