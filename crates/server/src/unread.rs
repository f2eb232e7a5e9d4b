//! Answers that the other end does not read: each holds memory, so a connection that leaves them lying is closed.
//!
//! On an HTTP/1 connection the socket itself stands still, which its write limit sees. On an HTTP/2 connection the socket
//! may go on while the window of a stream stays shut. So long answers are given in parts: the next one is only asked for
//! when the window is open, and an answer that is never asked for its next part is not read, whatever else is. One that
//! was asked and has nothing to give yet, such as the stream of a quiet link between members, waits for this process and
//! not for the other end: it is not counted until it has given something again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::Response;
use http_body::{Frame, SizeHint};

/// Longest part of an answer, in bytes.
const PART: usize = 16 << 10;
/// Bytes of answers, over all connections, from which on connections are closed that have not read for a short while.
/// What several answers share counts several times.
const HELD_MAX: usize = 256 << 20;
/// How finely times without progress are told apart.
pub const PERIOD: Duration = Duration::from_secs(5);
/// Periods after which an answer is not read.
const PATIENCE: usize = 6;
/// The same while too much is held.
const SHORT_PATIENCE: usize = 1;

/// Marks a response that lasts as long as its connection and whose sender watches by itself whether it is read.
#[derive(Clone, Copy, Debug)]
pub struct Lasting;

/// Bytes of answers that are open on all connections of a process; a clone counts the same.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<AtomicUsize>);

impl Held {
    /// So many bytes.
    pub fn n_bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The answers of one connection that are not read to their end.
#[derive(Clone, Debug)]
pub struct Unread {
    count: Arc<Count>,
    held: Held,
}

/// Open answers by the period in which each last went on: the present one, and those before it.
#[derive(Debug, Default)]
struct Count {
    period: AtomicUsize,
    open: [AtomicUsize; PERIODS],
}

/// Periods that are told apart.
const PERIODS: usize = PATIENCE + 2;

impl Count {
    fn of(&self, period: usize) -> &AtomicUsize {
        &self.open[period % PERIODS]
    }

    /// True when an answer has not gone on for so many whole periods before this one.
    fn has_rested(&self, now: usize, n_periods: usize) -> bool {
        // None is older than can be told apart: the connection would be closed.
        (n_periods + 1..PERIODS).any(|age| self.of(now + PERIODS - age).load(Ordering::Relaxed) > 0)
    }
}

/// One open answer.
#[derive(Debug)]
struct Open {
    of: Unread,
    /// The period in which it last went on; `None` while it has nothing to give.
    at: Option<usize>,
    /// Bytes that have not gone yet.
    n_bytes: usize,
}

impl Open {
    fn begin(of: &Unread, n_bytes: usize) -> Self {
        let at = of.count.period.load(Ordering::Relaxed);
        of.count.of(at).fetch_add(1, Ordering::Relaxed);
        of.held.0.fetch_add(n_bytes, Ordering::Relaxed);
        Open {
            of: of.clone(),
            at: Some(at),
            n_bytes,
        }
    }

    fn has_gone(&mut self, n_bytes: usize) {
        let n_bytes = n_bytes.min(self.n_bytes);
        self.n_bytes -= n_bytes;
        self.of.held.0.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    fn go_on(&mut self) {
        let now = self.of.count.period.load(Ordering::Relaxed);
        self.count_at(Some(now));
    }

    fn has_nothing_to_give(&mut self) {
        self.count_at(None);
    }

    fn count_at(&mut self, at: Option<usize>) {
        if at == self.at {
            return;
        }
        let count = &self.of.count;
        if let Some(at) = at {
            count.of(at).fetch_add(1, Ordering::Relaxed);
        }
        if let Some(former) = self.at {
            count.of(former).fetch_sub(1, Ordering::Relaxed);
        }
        self.at = at;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.has_gone(self.n_bytes);
        self.count_at(None);
    }
}

impl Unread {
    /// None yet on a connection; `held` counts those of all connections.
    pub fn new(held: Held) -> Self {
        Unread {
            count: Arc::default(),
            held,
        }
    }

    /// Watches a response, unless it is [`Lasting`].
    pub fn watch(&self, response: Response<Body>) -> Response<Watched> {
        let is_lasting = response.extensions().get::<Lasting>().is_some();
        let n_bytes =
            usize::try_from(http_body::Body::size_hint(response.body()).lower()).unwrap_or(usize::MAX);
        let open = (!is_lasting).then(|| Open::begin(self, n_bytes));
        response.map(|body| Watched {
            body,
            rest: Bytes::new(),
            open,
        })
    }

    /// Completes when some answer has not gone on for 30 s, or for 5 s while too much is held in all; up to 5 s later.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn stalled(&self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let now = self.count.period.fetch_add(1, Ordering::Relaxed) + 1;
            let patience = match self.held.n_bytes() > HELD_MAX {
                true => SHORT_PATIENCE,
                false => PATIENCE,
            };
            if self.count.has_rested(now, patience) {
                return;
            }
        }
    }
}

/// The body of a watched response.
#[derive(Debug)]
pub struct Watched {
    body: Body,
    /// What the body gave and is still to be passed on.
    rest: Bytes,
    open: Option<Open>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if let Some(open) = &mut this.open {
            open.go_on();
        }
        if this.rest.is_empty() {
            let polled = Pin::new(&mut this.body).poll_frame(context)?;
            if polled.is_pending()
                && let Some(open) = &mut this.open
            {
                open.has_nothing_to_give();
            }
            match ready!(polled) {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
            }
        }
        let length = this.rest.len().min(PART);
        if let Some(open) = &mut this.open {
            open.has_gone(length);
        }
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use http_body::Body as _;
    use tokio::sync::mpsc;
    use tokio::time::{Instant, timeout};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn answer(unread: &Unread, n_bytes: usize) -> Watched {
        unread
            .watch(Response::new(Body::from(vec![0; n_bytes])))
            .into_body()
    }

    fn long_answer(unread: &Unread) -> Watched {
        answer(unread, 100 * PART)
    }

    async fn read_part(answer: &mut Watched) {
        let part = poll_fn(|context| Pin::new(&mut *answer).poll_frame(context)).await;
        assert!(matches!(part, Some(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_go_on_is_found_whatever_else_is_read() {
        let unread = Unread::new(Held::default());
        let (_never, mut slowly) = (long_answer(&unread), long_answer(&unread));
        let began = Instant::now();
        let read = async {
            loop {
                read_part(&mut slowly).await;
                read_part(&mut long_answer(&unread)).await;
                tokio::time::sleep(LIMIT / 2).await;
            }
        };
        tokio::select! {
            () = read => {}
            () = unread.stalled() => {}
        }
        assert_eq!(began.elapsed(), LIMIT + PERIOD);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_has_nothing_to_give_is_read_until_it_has() {
        let unread = Unread::new(Held::default());
        let (sender, receiver) = mpsc::channel(1);
        let body = Body::from_stream(ReceiverStream::new(receiver));
        let mut quiet = unread.watch(Response::new(body)).into_body();
        let next = poll_fn(|context| Pin::new(&mut quiet).poll_frame(context));
        tokio::select! {
            _ = next => panic!("nothing was sent"),
            () = unread.stalled() => panic!("nothing is there to be read"),
            () = tokio::time::sleep(10 * LIMIT) => {}
        }
        let began = Instant::now();
        let part = Ok::<_, Infallible>(Bytes::from_static(b"news"));
        sender.send(part).await.unwrap();
        read_part(&mut quiet).await;
        unread.stalled().await;
        let waited = began.elapsed();
        assert!(waited > LIMIT && waited <= LIMIT + PERIOD, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn when_too_much_is_held_in_all_whoever_does_not_read_is_found_soon() {
        let held = Held::default();
        let (stuck, other) = (Unread::new(held.clone()), Unread::new(held.clone()));
        let _small = answer(&stuck, 1);
        let mut large = answer(&other, HELD_MAX);
        assert_eq!(held.n_bytes(), HELD_MAX + 1);
        let began = Instant::now();
        let read = async {
            loop {
                tokio::time::sleep(PERIOD / 2).await;
                read_part(&mut large).await;
            }
        };
        tokio::select! {
            () = read => {}
            () = other.stalled() => panic!("it reads"),
            () = stuck.stalled() => {}
        }
        // At the first look too much was held no more.
        assert_eq!(began.elapsed(), LIMIT + PERIOD);
        let more = answer(&other, HELD_MAX);
        let stuck = Unread::new(held.clone());
        let _small = answer(&stuck, 1);
        let began = Instant::now();
        stuck.stalled().await;
        assert_eq!(began.elapsed(), 2 * PERIOD);
        drop((large, more));
        assert_eq!(held.n_bytes(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_go_on_slowly_or_are_over_do_not_count() {
        let unread = Unread::new(Held::default());
        let mut slowly = long_answer(&unread);
        drop(long_answer(&unread));
        let read = async {
            for _ in 0..20 {
                tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
                read_part(&mut slowly).await;
            }
            drop(slowly);
            tokio::time::sleep(5 * LIMIT).await;
        };
        tokio::select! {
            () = read => {}
            () = unread.stalled() => panic!("nothing stalls"),
        }
        assert!(timeout(5 * LIMIT, unread.stalled()).await.is_err());
    }
}
