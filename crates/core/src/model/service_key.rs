//! Identity of a service: namespace, group and name.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

/// Namespace of requests that name none (`spec/validation.md` §1).
pub const DEFAULT_NAMESPACE: &str = "public";
/// Group of requests that name none.
pub const DEFAULT_GROUP: &str = "DEFAULT_GROUP";
/// Cluster of instances that name none.
pub const DEFAULT_CLUSTER: &str = "DEFAULT";
/// Stands between group and name in the grouped form `group@@name`.
pub const GROUP_SEPARATOR: &str = "@@";

/// Identity of a service: (namespace, group, name). All three are case-sensitive.
///
/// One shared text `namespace##group@@name`; a clone costs one reference count.
#[derive(Clone)]
pub struct ServiceKey {
    text: Arc<str>,
    group_at: u32,
    name_at: u32,
}

impl ServiceKey {
    /// The key of service `name` in `group` of `namespace`; a blank namespace is `public`, a blank group
    /// `DEFAULT_GROUP`.
    pub fn new(namespace: &str, group: &str, name: &str) -> Self {
        let namespace = if namespace.trim().is_empty() {
            DEFAULT_NAMESPACE
        } else {
            namespace
        };
        let group = if group.trim().is_empty() {
            DEFAULT_GROUP
        } else {
            group
        };
        let group_at = namespace.len() + 2;
        let name_at = group_at + group.len() + 2;
        ServiceKey {
            text: format!("{namespace}##{group}{GROUP_SEPARATOR}{name}").into(),
            group_at: group_at as u32,
            name_at: name_at as u32,
        }
    }

    /// The namespace id.
    pub fn namespace(&self) -> &str {
        &self.text[..self.group_at as usize - 2]
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.text[self.group_at as usize..self.name_at as usize - 2]
    }

    /// The plain service name.
    pub fn name(&self) -> &str {
        &self.text[self.name_at as usize..]
    }

    /// `group@@name`, as HTTP answers and instance ids have it.
    pub fn grouped_name(&self) -> &str {
        &self.text[self.group_at as usize..]
    }

    /// The whole text `namespace##group@@name`; the order of keys is the order of these texts.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// A hash that is the same on every member and in every version.
    pub fn stable_hash(&self) -> u64 {
        xxh3_64(self.text.as_bytes())
    }
}

impl PartialEq for ServiceKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.group_at == other.group_at && self.name_at == other.name_at
    }
}

impl Eq for ServiceKey {}

impl PartialOrd for ServiceKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServiceKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&*self.text, self.group_at, self.name_at).cmp(&(&*other.text, other.group_at, other.name_at))
    }
}

impl Hash for ServiceKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Borrow<str> for ServiceKey {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_as_they_went_in() {
        let key = ServiceKey::new("dev", "g:1", "a@b/c");
        assert_eq!(
            (key.namespace(), key.group(), key.name()),
            ("dev", "g:1", "a@b/c")
        );
        assert_eq!(key.grouped_name(), "g:1@@a@b/c");
    }

    #[test]
    fn blank_parts_take_the_defaults() {
        assert_eq!(
            ServiceKey::new("", " ", "s"),
            ServiceKey::new("public", "DEFAULT_GROUP", "s")
        );
    }

    #[test]
    fn keys_differ_when_the_same_text_is_cut_elsewhere() {
        assert_ne!(
            ServiceKey::new("a", "b", "c@@d"),
            ServiceKey::new("a", "b@@c", "d")
        );
    }
}
