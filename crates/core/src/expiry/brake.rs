//! The brake on mass expiry: when a large share of those that were heard regularly fall silent at one moment, it is
//! likelier that this member does not hear than that all of them are dead (`spec/health.md` §9, H3).

/// So many may fall silent at one moment, whatever their share: small fleets keep their exact times.
const FREE: usize = 20;

/// How many are silent, of those that were heard regularly before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Silence {
    /// Heard regularly before, and not yet judged dead.
    pub n_known: usize,
    /// Of these, silent for so long that their verdict is near.
    pub n_silent: usize,
    /// Of these, those whose verdict is due and held.
    pub n_held: usize,
}

impl Silence {
    /// True when more than `percent` of all are silent and more than a few: verdicts are held then. 0 never holds.
    pub fn is_suspect(&self, percent: usize) -> bool {
        percent > 0 && self.n_silent > FREE && self.n_silent * 100 > self.n_known * percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_share_of_many_is_suspect() {
        let is_suspect = |n_silent, n_known, percent| {
            let silence = Silence {
                n_known,
                n_silent,
                n_held: 0,
            };
            silence.is_suspect(percent)
        };
        assert!(is_suspect(301, 1_000, 30) && !is_suspect(300, 1_000, 30));
        assert!(is_suspect(21, 21, 30) && !is_suspect(20, 20, 30));
        assert!(!is_suspect(1_000, 1_000, 0));
    }
}
