//! Tells what is new from what repeats, so that a problem that lasts is logged once.

use std::collections::HashMap;

use parking_lot::Mutex;
use rollcall_core::Millis;

/// Parties remembered at a time. A stranger can claim any name: more of them must not fill the memory or the log.
const PARTIES: usize = 64;
/// How long a party is remembered before a new one may take its place.
const KEEP: Millis = Millis::secs(10);
/// Longest text or name that is kept, in bytes.
const TEXT: usize = 512;

/// The last thing said about each party.
#[derive(Debug, Default)]
pub(super) struct News(Mutex<HashMap<String, (String, Millis)>>);

impl News {
    /// Notes `text` about `party`; true when the last text about it was another one.
    pub(super) fn is_new(&self, party: &str, text: &str, now: Millis) -> bool {
        let (party, text) = (clip(party), clip(text));
        let mut known = self.0.lock();
        if let Some((last, when)) = known.get_mut(party) {
            *when = now;
            if last == text {
                return false;
            }
            last.clear();
            last.push_str(text);
            return true;
        }
        if known.len() >= PARTIES {
            known.retain(|_, (_, when)| now.since(*when) < KEEP);
            if known.len() >= PARTIES {
                return false;
            }
        }
        known.insert(party.to_owned(), (text.to_owned(), now));
        true
    }

    /// What was said last about `party`.
    pub(super) fn last(&self, party: &str) -> Option<String> {
        self.0.lock().get(clip(party)).map(|(text, _)| text.clone())
    }

    /// Forgets what was said about `party`: the trouble is over.
    pub(super) fn clear(&self, party: &str) {
        self.0.lock().remove(clip(party));
    }
}

fn clip(text: &str) -> &str {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_new_once_and_again_after_a_change() {
        let news = News::default();
        assert!(news.is_new("a", "down", Millis(1)));
        assert!(!news.is_new("a", "down", Millis(2)));
        assert!(news.is_new("b", "down", Millis(2)));
        assert!(news.is_new("a", "refused", Millis(3)));
        assert_eq!(news.last("a").as_deref(), Some("refused"));
        news.clear("a");
        assert_eq!(news.last("a"), None);
        assert!(news.is_new("a", "refused", Millis(4)));
    }

    #[test]
    fn many_strangers_are_neither_remembered_nor_told_without_bound() {
        let news = News::default();
        let told = (0..1000)
            .filter(|n| news.is_new(&n.to_string(), "x", Millis(1)))
            .count();
        assert_eq!(told, PARTIES);
        assert!(news.is_new("later", "x", Millis(20_000)));
        assert_eq!(clip(&"ä".repeat(600)).len(), TEXT);
    }
}
