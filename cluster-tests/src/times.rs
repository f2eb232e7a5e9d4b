//! Times that were measured, and what is said of them.

use std::time::Duration;

/// Times that were measured.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Takes note of one.
    pub fn note(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The time below which this share of all lies, if there is any.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.0.clone();
        sorted.sort();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let at = ((sorted.len() as f64 - 1.0) * share).round().max(0.0) as usize;
        sorted.get(at).copied()
    }

    /// The longest time, if there is any.
    pub fn longest(&self) -> Option<Duration> {
        self.0.iter().max().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_sorted_times() {
        let times = Times([5, 1, 4, 2, 3].map(Duration::from_secs).into());
        assert_eq!(times.quantile(0.5), Some(Duration::from_secs(3)));
        assert_eq!(times.quantile(0.99), times.longest());
        assert_eq!(Times::default().quantile(0.5), None);
    }
}
