//! How busy the machine is, as `/proc` says.

use std::fs;

use parking_lot::Mutex;

/// Stands for what cannot be found out.
const UNKNOWN: f64 = -1.0;

/// Reads how busy the machine is.
#[derive(Debug)]
pub struct Machine {
    /// Processor times at the last look that saw time pass, and the share of busy time then.
    last: Mutex<(CpuTimes, f64)>,
}

/// How busy the machine is. What cannot be found out is -1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MachineLoad {
    /// Share of time in which its processors were busy since the last look, from 0 to 1.
    pub cpu: f64,
    /// Tasks that ran or waited to run, averaged over a minute.
    pub load: f64,
    /// Share of its memory that is not available to new work, from 0 to 1.
    pub memory: f64,
}

/// Times of all processors since the machine started, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct CpuTimes {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Begins to look: the share of busy time counts from now on.
    pub fn new() -> Self {
        let times = read("stat", cpu_times);
        let cpu = times.map_or(UNKNOWN, |times| {
            CpuTimes::default().share(times).unwrap_or(UNKNOWN)
        });
        Machine {
            last: Mutex::new((times.unwrap_or_default(), cpu)),
        }
    }

    /// How busy it is now.
    pub fn load(&self) -> MachineLoad {
        let mut last = self.last.lock();
        if let Some(times) = read("stat", cpu_times)
            && let Some(share) = last.0.share(times)
        {
            *last = (times, share);
        }
        MachineLoad {
            cpu: last.1,
            load: read("loadavg", load_average).unwrap_or(UNKNOWN),
            memory: read("meminfo", memory_in_use).unwrap_or(UNKNOWN),
        }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

impl CpuTimes {
    /// Share of busy time from these to `later` ones; `None` when no time has passed.
    fn share(self, later: CpuTimes) -> Option<f64> {
        let all = later.all.checked_sub(self.all).filter(|all| *all > 0)?;
        Some(later.busy.saturating_sub(self.busy) as f64 / all as f64)
    }
}

fn read<T>(file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    parse(&fs::read_to_string(format!("/proc/{file}")).ok()?)
}

/// `cpu  user nice system idle iowait irq softirq steal guest guest_nice`; guests are part of user and nice.
fn cpu_times(stat: &str) -> Option<CpuTimes> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Option<Vec<u64>> = line
        .split_ascii_whitespace()
        .take(8)
        .map(|time| time.parse().ok())
        .collect();
    let times = times?;
    let idle: u64 = times.get(3..)?.iter().take(2).sum();
    let all: u64 = times.iter().sum();
    Some(CpuTimes {
        busy: all - idle,
        all,
    })
}

/// The first number is the average over a minute.
fn load_average(loadavg: &str) -> Option<f64> {
    loadavg.split_ascii_whitespace().next()?.parse().ok()
}

/// Lines such as `MemTotal:  16316412 kB`.
fn memory_in_use(meminfo: &str) -> Option<f64> {
    let size = |name: &str| -> Option<f64> {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    let total = size("MemTotal:").filter(|total| *total > 0.0)?;
    Some(1.0 - size("MemAvailable:")? / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_what_is_neither_idle_nor_waiting_for_disks() {
        let early = cpu_times("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        assert_eq!((early.busy, early.all), (150, 1000));
        let later = cpu_times("cpu  150 0 75 850 75 0 0 0 40 0\n").unwrap();
        assert_eq!(early.share(later), Some(0.5));
        assert_eq!(later.share(later), None);
        assert_eq!(cpu_times("intr 5\n"), None);
        assert_eq!(cpu_times("cpu 1 2 x 4 5\n"), None);
    }

    #[test]
    fn memory_in_use_is_what_new_work_cannot_have() {
        let text = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n";
        assert!(memory_in_use(text).is_some_and(|share| (share - 0.4).abs() < 1e-9));
        assert_eq!(memory_in_use("MemTotal:       1000 kB\n"), None);
    }

    #[test]
    fn the_load_is_the_average_over_a_minute() {
        assert_eq!(load_average("6.80 3.10 1.00 2/345 6789\n"), Some(6.8));
        assert_eq!(load_average(""), None);
    }
}
