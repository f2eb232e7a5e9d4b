//! What a list of members must keep to, at the start and whenever it changes.

use rollcall_core::MemberId;
use rollcall_distro::MAX_MEMBERS;
use smol_str::SmolStr;

use super::member_file::Entry;
use super::validate::address;

/// A list that is refused: the rule, and the line that breaks it if it is one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{rule}", .line.map_or(String::new(), |line| format!("line {line}: ")))]
pub struct ListError {
    /// Line of the text, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub rule: String,
    /// The only fault is that this node is not in it.
    pub lacks_self: bool,
}

/// The rules for lists of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberRules {
    /// Address of this node, which every list must have.
    pub advertise: SmolStr,
    /// Main port of this node, for members without a port.
    pub port: u16,
    /// Distances of all ports of a member from its main port.
    pub distances: [i32; 3],
}

impl MemberRules {
    /// The members of a list as `host:port`, each once, sorted.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self, entries: &[Entry]) -> Result<Vec<SmolStr>, ListError> {
        let at = |entry: &Entry, rule: String| ListError {
            line: entry.line,
            rule,
            lacks_self: false,
        };
        let whole = |rule: String| ListError {
            line: None,
            rule,
            lacks_self: false,
        };
        let mut members: Vec<SmolStr> = Vec::new();
        for entry in entries {
            let member = address(&entry.text, Some(self.port)).map_err(|rule| at(entry, rule))?;
            // A list that names a member twice is as good as one that names it once.
            if members.contains(&member) {
                continue;
            }
            for other in &members {
                if MemberId::of(other) == MemberId::of(&member) {
                    let rule = format!("{member} and {other} have the same identity, change one name");
                    return Err(at(entry, rule));
                }
                self.ports_differ(other, &member)
                    .map_err(|rule| at(entry, rule))?;
            }
            if members.len() == MAX_MEMBERS {
                return Err(at(entry, format!("lists more than {MAX_MEMBERS} members")));
            }
            members.push(member);
        }
        if members.is_empty() {
            return Err(whole("lists no member".to_owned()));
        }
        for member in members.iter().filter(|_| members.len() > 1) {
            let own = self.ports(member);
            if own.iter().any(|port| !(1..=65_535).contains(port)) {
                let rule = format!(
                    "{member} has no room for its ports {own:?} (main, gRPC, peer) between 1 and 65535"
                );
                return Err(whole(rule));
            }
        }
        if !members.contains(&self.advertise) {
            let rule = format!(
                "the advertised address {} is not in the member list ({}); members must list it exactly so",
                self.advertise,
                members.join(", ")
            );
            return Err(ListError {
                lacks_self: true,
                ..whole(rule)
            });
        }
        members.sort();
        Ok(members)
    }

    fn ports(&self, member: &str) -> [i32; 3] {
        let port = member.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        self.distances.map(|distance| port.unwrap_or(0) + distance)
    }

    /// Two members on one host need ports of their own, derived ones included.
    fn ports_differ(&self, one: &str, other: &str) -> Result<(), String> {
        let host = |member: &str| member.rsplit_once(':').map(|(host, _)| host.to_owned());
        let (ours, theirs) = (self.ports(one), self.ports(other));
        let shared = ours.iter().find(|port| theirs.contains(port));
        match shared.filter(|_| host(one) == host(other)) {
            Some(port) => Err(format!(
                "{one} and {other} both need port {port}: each member uses its main port, +{} for gRPC and +{} for members; \
                 choose main ports that are further apart, such as 10",
                self.distances[1], self.distances[2]
            )),
            None => Ok(()),
        }
    }
}
