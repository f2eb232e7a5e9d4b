//! What other members say to this node, and what it says to them: links, frames, probes.

use rollcall_core::{MemberId, Now};
use rollcall_distro::message::{Frame, LinkHello, LinkRefusal, Probe, Reply, Welcome};
use rollcall_distro::{Effects, LacksSelf, LinkError, LinkId, ProbeResult};
use smol_str::SmolStr;

use crate::action::Actions;
use crate::node::Node;

impl Node {
    /// Takes another member list, this node's own address included. Links, ownership and the copies of rows follow.
    ///
    /// # Errors
    /// [`LacksSelf`]; nothing has changed then.
    pub fn set_members(&self, list: &[SmolStr], now: Now, actions: &mut Actions) -> Result<(), LacksSelf> {
        let mut effects = Effects::default();
        let taken = self.engine.set_members(list, now, &mut effects);
        self.settle(effects, now, actions);
        actions.wake();
        taken
    }

    /// The member list, sorted, this node included.
    pub fn member_list(&self) -> Vec<SmolStr> {
        self.engine.list()
    }

    /// Whom to dial: all members but this one, also those that only other members list.
    pub fn peers(&self) -> Vec<(MemberId, SmolStr)> {
        self.engine
            .members()
            .iter()
            .map(|m| (m.id, m.address.clone()))
            .collect()
    }

    /// What this node says when it dials another.
    pub fn link_hello(&self) -> LinkHello {
        self.engine.hello()
    }

    /// A member dials this one.
    ///
    /// # Errors
    /// [`LinkRefusal`]; nothing has changed then.
    pub fn accept_link(
        &self,
        hello: &LinkHello,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(LinkId, MemberId, Welcome), LinkRefusal> {
        let mut effects = Effects::default();
        let accepted = self.engine.accept_link(hello, now, &mut effects);
        self.settle(effects, now, actions);
        accepted
    }

    /// An inbound link broke.
    pub fn inbound_down(&self, link: LinkId, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.inbound_down(link, now, &mut effects);
        self.settle(effects, now, actions);
    }

    /// A frame on an inbound link.
    ///
    /// # Errors
    /// [`LinkError`]: drop the link.
    pub fn on_frame(
        &self,
        link: LinkId,
        frame: Frame,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), LinkError> {
        let mut effects = Effects::default();
        let done = self.engine.on_frame(link, frame, now, &mut effects);
        self.settle(effects, now, actions);
        done
    }

    /// The next reply for an inbound link.
    pub fn poll_reply(&self, link: LinkId) -> Option<Reply> {
        self.engine.poll_reply(link)
    }

    /// An outbound link is set up, on which the member reads `format`.
    pub fn link_up(
        &self,
        to: MemberId,
        format: u8,
        welcome: Welcome,
        now: Now,
        actions: &mut Actions,
    ) -> LinkId {
        if self.is_unlisted() {
            // It is the first that takes this node again, and shall not be told what has ended meanwhile.
            self.close_left_behind(now, actions);
        }
        let mut effects = Effects::default();
        let link = self.engine.link_up(to, format, &welcome, now, &mut effects);
        self.settle(effects, now, actions);
        link
    }

    /// A member refused this node's hello.
    pub fn link_refused(&self, by: MemberId, refusal: &LinkRefusal, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.link_refused(by, refusal, now, &mut effects);
        self.settle(effects, now, actions);
    }

    /// An outbound link broke.
    pub fn link_down(&self, link: LinkId, now: Now, _actions: &mut Actions) {
        self.engine.link_down(link, now);
    }

    /// The next frame for an outbound link; `None`: wait for [`LinkReady`](crate::action::Action::LinkReady).
    pub fn poll_link(&self, link: LinkId, now: Now) -> Option<Frame> {
        self.engine.poll_link(link, now)
    }

    /// A reply on an outbound link.
    ///
    /// # Errors
    /// [`LinkError`]: drop the link.
    pub fn on_reply(
        &self,
        link: LinkId,
        reply: Reply,
        now: Now,
        actions: &mut Actions,
    ) -> Result<(), LinkError> {
        let mut effects = Effects::default();
        let done = self.engine.on_reply(link, reply, now, &mut effects);
        self.settle(effects, now, actions);
        done
    }

    /// What this node asks at its own advertised address, to see whether it is itself that answers.
    pub fn own_probe(&self, now: Now) -> Probe {
        self.engine.own_probe(now)
    }

    /// A probe of another member, or of whoever goes by this node's name.
    ///
    /// # Errors
    /// [`LinkRefusal`] when the sender is not a member of this cluster.
    pub fn on_probe(&self, probe: &Probe, now: Now, actions: &mut Actions) -> Result<Probe, LinkRefusal> {
        let mut effects = Effects::default();
        let answer = self.engine.on_probe(probe, now, &mut effects);
        self.settle(effects, now, actions);
        answer
    }

    /// Says whether the disk takes writes far too slowly. While it does, other members own this node's services; reads
    /// and connections go on.
    pub fn note_disk(&self, is_slow: bool, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.set_impaired(is_slow, now, &mut effects);
        self.settle(effects, now, actions);
    }

    /// The result of a probe that this node asked for.
    pub fn probe_done(&self, to: MemberId, result: ProbeResult, now: Now, actions: &mut Actions) {
        let mut effects = Effects::default();
        self.engine.probe_done(to, result, now, &mut effects);
        self.settle(effects, now, actions);
    }
}
