//! Which member owns a service: the hash of its grouped name over the configured members (`design.md` §2).

use crate::model::service_key::ServiceKey;

/// A rule that ranks the configured members for a service. All members of a cluster must use the same one.
pub trait Mapper: Send + Sync {
    /// Name of the rule, compared in the handshake between members.
    fn name(&self) -> &'static str;

    /// The position in the sorted member list at which the ranking for `service` starts; it goes on from there,
    /// wrapping around. `n_members` is at least 1.
    fn first(&self, service: &ServiceKey, n_members: usize) -> usize;
}

/// `hash("group@@name") mod n` with the hash that Java's `String.hashCode` computes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModuloMapper;

impl Mapper for ModuloMapper {
    fn name(&self) -> &'static str {
        "modulo"
    }

    fn first(&self, service: &ServiceKey, n_members: usize) -> usize {
        let hash = java_hash(service.grouped_name());
        (i64::from(hash) % i64::from(i32::MAX)).unsigned_abs() as usize % n_members
    }
}

/// `String.hashCode` of Java: over UTF-16 units, 31-based, wrapping.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16()
        .fold(0i32, |h, unit| h.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_equals_javas() {
        // Values from the definition s[0]*31^(n-1) + ... in 32-bit arithmetic.
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("a"), 97);
        assert_eq!(java_hash("hello"), 99162322);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("😀"), 0xD83Di32 * 31 + 0xDE00);
    }

    #[test]
    fn the_smallest_hash_has_a_place_too() {
        let service = ServiceKey::new("", "", "x");
        assert!(ModuloMapper.first(&service, 3) < 3);
        assert_eq!((i64::from(i32::MIN) % i64::from(i32::MAX)).unsigned_abs(), 1);
    }
}
