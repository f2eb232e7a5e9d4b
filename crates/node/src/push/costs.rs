//! How long pushes take: from the change that a push tells of until it leaves, and until it is acknowledged.

use parking_lot::Mutex;
use rollcall_core::latency::MINUTE;
use rollcall_core::{Latencies, LatencyCounts, Micros, Now, Peak};

/// What a push goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushWay {
    /// The stream of a connection.
    Grpc,
    /// A datagram to a 1.x client.
    Udp,
}

impl PushWay {
    /// Both.
    pub(crate) const ALL: [PushWay; 2] = [PushWay::Grpc, PushWay::Udp];

    /// Its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PushWay::Grpc => "grpc",
            PushWay::Udp => "udp",
        }
    }
}

/// Latencies of the pushes that told of a change.
#[derive(Debug, Default)]
pub(crate) struct PushCosts {
    sent: [Latencies; 2],
    acked: [Latencies; 2],
    peak: Peak,
    minutes: Mutex<Minutes>,
}

/// Acknowledged pushes and their latencies, summed since the start, as they stood when two minutes began.
#[derive(Debug, Default)]
struct Minutes {
    number: u64,
    at_former: Sum,
    at_this: Sum,
}

type Sum = (u64, Micros);

/// What the pushes cost that were acknowledged in this minute and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecentCosts {
    /// How many there were.
    pub n_acked: u64,
    /// Time from the change to the acknowledgement, summed.
    pub sum: Micros,
    /// The longest; `None` when there was none.
    pub max: Option<Micros>,
}

impl PushCosts {
    /// A push left that tells of a change at `changed`.
    pub(crate) fn sent(&self, way: PushWay, changed: Option<Micros>, now: Now) {
        record(&self.sent, way, changed, now);
    }

    /// A push was acknowledged.
    pub(crate) fn acked(&self, way: PushWay, changed: Option<Micros>, now: Now) {
        if let Some(latency) = record(&self.acked, way, changed, now) {
            self.peak.record(latency, now.fine);
        }
    }

    /// The latencies until pushes left, and until they were acknowledged.
    pub(crate) fn counts(&self, way: PushWay) -> (LatencyCounts, LatencyCounts) {
        (of(&self.sent, way).counts(), of(&self.acked, way).counts())
    }

    /// Notes where the sums stand when a minute begins. To be called often.
    pub(crate) fn tick(&self, now: Now) {
        let number = now.fine.0 / MINUTE;
        let mut minutes = self.minutes.lock();
        if number > minutes.number {
            let sum = self.sum();
            let is_next = number == minutes.number + 1;
            minutes.at_former = if is_next { minutes.at_this } else { sum };
            minutes.at_this = sum;
            minutes.number = number;
        }
    }

    /// The recent ones.
    pub(crate) fn recent(&self, now: Now) -> RecentCosts {
        self.tick(now);
        let (n_acked, sum) = self.sum();
        let (n_before, sum_before) = self.minutes.lock().at_former;
        RecentCosts {
            n_acked: n_acked.saturating_sub(n_before),
            sum: sum.since(sum_before),
            max: self.peak.read(now.fine),
        }
    }

    fn sum(&self) -> Sum {
        let counts = PushWay::ALL.map(|way| of(&self.acked, way).counts());
        let n_acked = counts.iter().map(LatencyCounts::total).sum();
        (n_acked, Micros(counts.iter().map(|c| c.sum.0).sum()))
    }
}

fn of(latencies: &[Latencies; 2], way: PushWay) -> &Latencies {
    let [grpc, udp] = latencies;
    match way {
        PushWay::Grpc => grpc,
        PushWay::Udp => udp,
    }
}

fn record(to: &[Latencies; 2], way: PushWay, changed: Option<Micros>, now: Now) -> Option<Micros> {
    let latency = now.fine.since(changed?);
    of(to, way).record(latency);
    Some(latency)
}

#[cfg(test)]
mod tests {
    use rollcall_core::Millis;

    use super::*;

    fn at(secs: u64) -> Now {
        Now::at(Millis::secs(secs), Millis(0))
    }

    #[test]
    fn recent_costs_are_those_of_this_minute_and_the_one_before() {
        let costs = PushCosts::default();
        let acked = |changed: u64, now: u64| costs.acked(PushWay::Grpc, Some(at(changed).fine), at(now));
        let recent = |now: u64| {
            let recent = costs.recent(at(now));
            (
                recent.n_acked,
                recent.sum.0 / 1_000_000,
                recent.max.map(|m| m.0 / 1_000_000),
            )
        };
        assert_eq!(recent(1), (0, 0, None));
        acked(10, 14);
        costs.acked(PushWay::Udp, Some(at(20).fine), at(22));
        costs.acked(PushWay::Grpc, None, at(23));
        assert_eq!(recent(59), (2, 6, Some(4)));
        costs.tick(at(60));
        acked(70, 71);
        assert_eq!(recent(119), (3, 7, Some(4)));
        assert_eq!(recent(120), (1, 1, Some(1)));
        assert_eq!(recent(180), (0, 0, None));
        acked(200, 203);
        assert_eq!(recent(1000), (0, 0, None), "nobody ticked meanwhile");
    }

    #[test]
    fn only_pushes_that_tell_of_a_change_have_a_latency() {
        let costs = PushCosts::default();
        costs.sent(PushWay::Udp, None, at(5));
        costs.sent(PushWay::Udp, Some(at(1).fine), at(2));
        let (sent, acked) = costs.counts(PushWay::Udp);
        assert_eq!((sent.total(), acked.total()), (1, 0));
        assert_eq!(costs.counts(PushWay::Grpc), Default::default());
    }
}
