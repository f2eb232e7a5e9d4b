//! Metadata of an instance: an ordered list of text pairs, shared by reference.

use std::sync::Arc;

use smol_str::SmolStr;

/// Key-value pairs in the order they were given; a key that is given twice keeps its last value.
#[derive(Clone, Default, PartialEq, Eq, Debug, Hash)]
pub struct Metadata(Option<Arc<[(SmolStr, SmolStr)]>>);

impl Metadata {
    /// Builds metadata from pairs; later pairs win over earlier ones with the same key.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (SmolStr, SmolStr)>) -> Self {
        let mut list: Vec<(SmolStr, SmolStr)> = Vec::new();
        for (key, value) in pairs {
            match list.iter_mut().find(|(k, _)| *k == key) {
                Some(pair) => pair.1 = value,
                None => list.push((key, value)),
            }
        }
        Metadata(if list.is_empty() { None } else { Some(list.into()) })
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(SmolStr, SmolStr)> {
        self.0.as_deref().unwrap_or_default().iter()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// True when there is no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// True when nobody else holds the same copy.
    pub(crate) fn is_unshared(&self) -> bool {
        self.0.as_ref().is_none_or(|pairs| Arc::strong_count(pairs) == 1)
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.iter().len()
    }

    /// These pairs with those of `upper` laid over them: keys of `upper` win, none is removed.
    pub fn overlaid(&self, upper: &Metadata) -> Metadata {
        if upper.is_empty() {
            return self.clone();
        }
        Metadata::from_pairs(self.iter().chain(upper.iter()).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(pairs: &[(&str, &str)]) -> Metadata {
        Metadata::from_pairs(pairs.iter().map(|(k, v)| (SmolStr::new(k), SmolStr::new(v))))
    }

    #[test]
    fn a_key_given_twice_keeps_its_last_value() {
        let m = meta(&[("a", "1"), ("b", "2"), ("a", "3")]);
        assert_eq!(m.len(), 2);
        assert_eq!(m.get("a"), Some("3"));
    }

    #[test]
    fn an_overlay_wins_and_removes_nothing() {
        let m = meta(&[("a", "1"), ("b", "2")]).overlaid(&meta(&[("b", "3"), ("c", "4")]));
        assert_eq!(m, meta(&[("a", "1"), ("b", "3"), ("c", "4")]));
    }
}
