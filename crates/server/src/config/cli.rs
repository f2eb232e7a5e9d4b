//! Settings from the command line.

use clap::{Arg, ArgAction, Command};

use super::keys::{KEYS, Setting};
use super::validate::address;

/// What the command line sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// Path of the file.
    pub config: Option<String>,
    /// Keys.
    pub settings: Vec<Setting>,
}

/// What the process is asked to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Job {
    /// Be a node.
    Serve(Flags),
    /// Say whether the nodes at these addresses agree.
    Verify {
        /// Their main ports, `host:port`.
        nodes: Vec<String>,
        /// How long a difference must last to count, in seconds.
        patience: u64,
    },
}

/// The command line: one flag for each key, and one for the file; or the job to verify.
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
    command.args_conflicts_with_subcommands(true).subcommand(verify())
}

fn verify() -> Command {
    let nodes = Arg::new("nodes")
        .value_name("host:port")
        .help("main ports of the nodes, separated by commas or blanks")
        .required(true)
        .num_args(1..)
        .value_parser(|text: &str| address(text, None).map(String::from))
        .value_delimiter(',');
    let patience = Arg::new("patience")
        .long("patience")
        .value_name("seconds")
        .help("how long a difference must last to count")
        .value_parser(clap::value_parser!(u64).range(0..=3600))
        .default_value("10");
    Command::new("verify")
        .about(
            "Says whether nodes hold the same: exit code 0 if they do, 1 if not, 2 if a node was not there to say, \
             64 if it is called wrongly",
        )
        .arg(nodes)
        .arg(patience)
}

/// Reads the command line, program name first.
///
/// # Errors
/// What is wrong, or the help text that was asked for; to be printed as it is.
pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Job, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    if let Some(("verify", matches)) = matches.subcommand() {
        let nodes = matches.get_many::<String>("nodes").unwrap_or_default();
        return Ok(Job::Verify {
            nodes: nodes.cloned().collect(),
            patience: matches.get_one("patience").copied().unwrap_or_default(),
        });
    }
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
    Ok(Job::Serve(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Job, clap::Error> {
        parse(
            std::iter::once("rollcall")
                .chain(arguments.iter().copied())
                .map(Into::into),
        )
    }

    #[test]
    fn every_key_has_a_flag() {
        command().debug_assert();
        let Ok(Job::Serve(flags)) = read(&["--grpc-port", "9000", "--config", "f", "--members=a:1,b:2"])
        else {
            panic!("no flags");
        };
        assert_eq!(flags.config.as_deref(), Some("f"));
        let settings: Vec<_> = flags
            .settings
            .iter()
            .map(|s| (s.key.as_str(), s.text.as_str()))
            .collect();
        assert_eq!(settings, [("grpc_port", "9000"), ("members", "a:1,b:2")]);
    }

    #[test]
    fn nodes_to_verify_are_named_by_commas_or_blanks() {
        let job = |nodes: &[&str], patience| Job::Verify {
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            patience,
        };
        let read = |arguments: &[&str]| read(arguments).ok();
        assert_eq!(
            read(&["verify", "a:1,b:2", "c:3"]),
            Some(job(&["a:1", "b:2", "c:3"], 10))
        );
        assert_eq!(
            read(&["verify", "a:1", "--patience", "3"]),
            Some(job(&["a:1"], 3))
        );
        assert_eq!(read(&["verify"]), None);
        for wrong in ["a", "a:b", "a:1,", "http://a:1", "a:70000"] {
            assert_eq!(read(&["verify", wrong]), None, "{wrong}");
        }
        assert_eq!(read(&["--port", "1", "verify", "a:1"]), None);
    }

    #[test]
    fn an_unknown_flag_is_named() {
        assert!(read(&["--colour", "red"]).is_err_and(|error| error.to_string().contains("--colour")));
    }
}
