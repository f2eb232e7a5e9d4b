//! Faults that the simulation plants to prove that its invariants catch them.
//!
//! Without the feature `planted-faults` every question here answers no and the compiler removes the branch.

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Fault {
    /// Withdrawals are not sent to other members, nor repaired.
    LostRemoval = 1 << 0,
    /// A snapshot carries rows with an outdated content and nothing corrects it.
    StaleSnapshotRow = 1 << 1,
    /// A node is ready at once, whatever its peers hold.
    NoGate = 1 << 2,
    /// A restarted member uses its former epoch, and nobody objects.
    ReusedEpoch = 1 << 3,
    /// Differing digests are not repaired and a log gap goes unnoticed.
    NoRepair = 1 << 4,
    /// Rows of a dead member are dropped at once.
    NoOrphanGrace = 1 << 5,
    /// Rows of a dead member are never dropped.
    OrphansForEver = 1 << 6,
    /// Members keep the beats that they hear to themselves.
    NoRelay = 1 << 7,
    /// A change is not pushed.
    LostPush = 1 << 8,
    /// Silent instances are never removed.
    NoExpiry = 1 << 9,
    /// A member that becomes owner, by a death or another list, judges by silence from before.
    NoTakeoverGrace = 1 << 10,
    /// Rows of a member that leaves the list are dropped at once.
    NoLeaveGrace = 1 << 11,
    /// Rows of a copy on disk are offered as if their connections lived.
    CopyLives = 1 << 20,
    /// A copy on disk is used however old it is.
    OldCopy = 1 << 21,
    /// A member that has no copy on disk does not wait for what others read from theirs.
    NoCopyOrder = 1 << 23,
    /// A member that was out of reach stays dead when it answers again.
    NoReturn = 1 << 22,
    /// A copy on disk is used beside members that serve.
    CopyBesideLive = 1 << 24,
}

/// The faults of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults(u32);

impl Faults {
    /// A node with one planted fault.
    #[cfg(feature = "planted-faults")]
    pub fn plant(fault: Fault) -> Self {
        Faults(fault as u32)
    }

    /// True when the fault is planted.
    #[inline]
    pub const fn has(self, fault: Fault) -> bool {
        cfg!(feature = "planted-faults") && self.0 & fault as u32 != 0
    }
}
