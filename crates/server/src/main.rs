//! The binary: settings, log, runtime, process.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use rollcall_server::agreement::Verdict;
use rollcall_server::config::cli::Job;
use rollcall_server::config::{Config, LogFormat, cli};
use rollcall_server::log_levels::LogLevels;
use rollcall_server::{agreement, wiring};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

/// Exit code of wrong settings (`EX_USAGE`).
const BAD_SETTINGS: u8 = 64;
/// Lines of the log that may wait to be written; further ones are lost.
const LOG_LINES: usize = 16_384;
/// Exit code of `verify` when a node was not there to say.
const UNCLEAR: u8 = 2;

fn main() -> ExitCode {
    let flags = match cli::parse(std::env::args_os()) {
        Ok(Job::Serve(flags)) => flags,
        Ok(Job::Verify { nodes, patience }) => return verify(&nodes, Duration::from_secs(patience)),
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(BAD_SETTINGS)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let environment =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let config = match Config::load(&flags, environment) {
        Ok(config) => config,
        Err(error) => {
            complain(&format!("wrong setting: {error}"));
            return ExitCode::from(BAD_SETTINGS);
        }
    };
    // The guard writes what is left when the process ends.
    let (log_levels, lost_lines, _guard) = match start_log(&config) {
        Ok(log) => log,
        Err(error) => {
            complain(&format!("wrong setting: log_level: {error}"));
            return ExitCode::from(BAD_SETTINGS);
        }
    };
    match run(config, log_levels, lost_lines) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Says why the process ends. Nobody may be reading: that must not change the exit code.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "rollcall: {text}");
}

/// Prints what a comparison of the nodes found. Exit code 0: they hold the same; 1: they do not; 2: not all were there.
fn verify(nodes: &[String], patience: Duration) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let found = match runtime {
        Ok(runtime) => runtime.block_on(agreement::compare(nodes, patience)),
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(UNCLEAR);
        }
    };
    let _ = write!(std::io::stdout(), "{found}");
    match found.verdict {
        Verdict::Agree => ExitCode::SUCCESS,
        Verdict::Differ => ExitCode::FAILURE,
        Verdict::Unknown => ExitCode::from(UNCLEAR),
    }
}

fn run(config: Config, log_levels: LogLevels, lost_lines: ErrorCounter) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("rollcall")
        .enable_all()
        .build()?;
    let result = runtime.block_on(wiring::run(config, log_levels, lost_lines));
    runtime.shutdown_background(); // What is left are connections that did not end in time.
    Ok(result?)
}

fn start_log(
    config: &Config,
) -> Result<(LogLevels, ErrorCounter, WorkerGuard), tracing_subscriber::filter::ParseError> {
    let filter: EnvFilter = config.log_level.parse()?;
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // Whoever reads the log may stand still, be gone, or have a full disk: nothing here waits for it or fails by it.
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LOG_LINES)
        .thread_name("rollcall-log")
        .finish(std::io::stderr());
    let lost_lines = writer.error_counter();
    let lines = fmt::layer()
        .with_writer(writer)
        .log_internal_errors(false)
        .with_ansi(is_terminal);
    let lines = match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let levels = LogLevels::new(config.log_level.clone(), move |filter| {
        handle.reload(filter).map_err(|error| error.to_string())
    });
    Ok((levels, lost_lines, guard))
}
