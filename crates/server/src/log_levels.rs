//! How much is logged of what, set at start and changed while the process runs.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// What tools of the protocol call parts of the server, and the part here that they mean. Their other names have no
/// counterpart.
const KNOWN: [(&str, &str); 6] = [
    ("ROOT", env!("CARGO_CRATE_NAME")),
    ("naming-main", env!("CARGO_CRATE_NAME")),
    ("naming-push", "rollcall_server::udp"),
    ("naming-distro", "rollcall_server::peer"),
    ("core-distro", "rollcall_server::peer"),
    ("core-cluster", "rollcall_server::peer"),
];
/// Start of the names of our own parts.
const OWN: &str = "rollcall_";
/// The levels.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Parts whose level may be set.
const MAX_SET: usize = 64;

/// Why a level cannot be set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LevelError {
    /// There is no such level.
    #[error("'logLevel' must be one of off, error, warn, info, debug and trace, not '{0}'")]
    NoLevel(String),
    /// The name of a part is not one that could exist.
    #[error("'logName' '{0}' is no name of a module: letters, digits, '_' and '::' only")]
    BadName(String),
    /// As many parts as may be have a level of their own.
    #[error("{MAX_SET} modules have levels of their own already")]
    TooMany,
    /// The log does not take another filter.
    #[error("the log cannot be changed: {0}")]
    Fixed(String),
}

type Apply = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The levels of the log of this process.
pub struct LogLevels {
    /// The filter of the settings.
    base: String,
    set: Mutex<BTreeMap<String, &'static str>>,
    apply: Apply,
}

impl fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevels")
            .field("base", &self.base)
            .field("set", &self.set)
            .finish_non_exhaustive()
    }
}

impl LogLevels {
    /// Levels that begin with the filter `base`; `apply` puts another one in its place.
    pub fn new(
        base: impl Into<String>,
        apply: impl Fn(EnvFilter) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        LogLevels {
            base: base.into(),
            set: Mutex::default(),
            apply: Box::new(apply),
        }
    }

    /// Sets the level of a part, by a name of the protocol or that of a module, until the process ends. A name without
    /// a counterpart changes nothing.
    ///
    /// # Errors
    /// [`LevelError`].
    pub fn set(&self, name: &str, level: &str) -> Result<(), LevelError> {
        let lower = level.to_ascii_lowercase();
        let known = LEVELS.into_iter().find(|known| *known == lower);
        let level = known.ok_or_else(|| LevelError::NoLevel(level.to_owned()))?;
        let part = KNOWN.iter().find(|(known, _)| *known == name);
        let module = match part {
            Some((_, module)) => *module,
            None if name.starts_with(OWN) => name,
            None => return Ok(()),
        };
        let is_of_module = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
        if !module.chars().all(is_of_module) {
            return Err(LevelError::BadName(name.to_owned()));
        }
        let mut set = self.set.lock();
        if set.len() >= MAX_SET && !set.contains_key(module) {
            return Err(LevelError::TooMany);
        }
        let former = set.insert(module.to_owned(), level);
        let result = self.filter(&set).map_err(|error| error.to_string());
        let result = result.and_then(&self.apply);
        if result.is_err() {
            match former {
                Some(former) => set.insert(module.to_owned(), former),
                None => set.remove(module),
            };
        }
        result.map_err(LevelError::Fixed)
    }

    fn filter(&self, set: &BTreeMap<String, &'static str>) -> Result<EnvFilter, ParseError> {
        let mut text = self.base.clone();
        for (module, level) in set {
            text.push_str(&format!(",{module}={level}"));
        }
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Levels whose filters are kept as text.
    fn levels() -> (LogLevels, Arc<Mutex<Vec<String>>>) {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let to = applied.clone();
        let levels = LogLevels::new("info", move |filter| {
            to.lock().push(filter.to_string());
            Ok(())
        });
        (levels, applied)
    }

    #[test]
    fn each_part_has_the_level_that_was_set_last() {
        let (levels, applied) = levels();
        levels.set("naming-main", "DEBUG").unwrap();
        levels.set("rollcall_server::udp", "trace").unwrap();
        levels.set("naming-main", "warn").unwrap();
        let last = applied.lock().last().unwrap().clone();
        for part in ["info", "rollcall_server=warn", "rollcall_server::udp=trace"] {
            assert!(last.contains(part), "{last}");
        }
        assert!(!last.contains("debug"), "{last}");
    }

    #[test]
    fn a_name_without_a_counterpart_changes_nothing() {
        let (levels, applied) = levels();
        assert_eq!(levels.set("core-auth", "INFO"), Ok(()));
        assert!(applied.lock().is_empty());
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let (levels, applied) = levels();
        let refused = levels.set("naming-main", "loud");
        assert_eq!(refused, Err(LevelError::NoLevel("loud".into())));
        let refused = levels.set("rollcall_server=trace,a", "info");
        assert!(matches!(refused, Err(LevelError::BadName(_))), "{refused:?}");
        for n in 0..MAX_SET {
            levels.set(&format!("rollcall_{n}"), "info").unwrap();
        }
        assert_eq!(
            levels.set("rollcall_server::one_more", "info"),
            Err(LevelError::TooMany)
        );
        assert_eq!(applied.lock().len(), MAX_SET);
        let fixed = LogLevels::new("info", |_| Err("gone".into()));
        assert_eq!(
            fixed.set("naming-main", "info"),
            Err(LevelError::Fixed("gone".into()))
        );
        assert!(fixed.set.lock().is_empty());
    }
}
