//! Answers that the other end does not read: each holds memory, so a connection that leaves them lying is closed.
//!
//! On an HTTP/1 connection the socket itself stands still, which its write limit sees. On an HTTP/2 connection the socket
//! may go on while the window of a stream stays shut. So long answers are given in parts: the next one is only asked for
//! when the window is open, and an answer that is never asked for its next part is not read, whatever else is.

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

/// Marks a response that lasts as long as its connection and is quiet most of the time.
#[derive(Clone, Copy, Debug)]
pub struct Lasting;

/// The answers of one connection that are not read to their end.
#[derive(Clone, Debug, Default)]
pub struct Unread(Arc<Count>);

/// Open answers by the period in which each last went on: the present one, the one before, and the one before that.
#[derive(Debug, Default)]
struct Count {
    period: AtomicUsize,
    open: [AtomicUsize; PERIODS],
}

/// Periods that are told apart.
const PERIODS: usize = 3;

impl Count {
    fn of(&self, period: usize) -> &AtomicUsize {
        let [a, b, c] = &self.open;
        match period % PERIODS {
            0 => a,
            1 => b,
            _ => c,
        }
    }
}

/// One open answer.
#[derive(Debug)]
struct Open {
    count: Arc<Count>,
    /// The period in which it last went on.
    at: usize,
}

impl Open {
    fn begin(count: &Arc<Count>) -> Self {
        let at = count.period.load(Ordering::Relaxed);
        count.of(at).fetch_add(1, Ordering::Relaxed);
        Open {
            count: count.clone(),
            at,
        }
    }

    fn go_on(&mut self) {
        let now = self.count.period.load(Ordering::Relaxed);
        if now != self.at {
            self.count.of(now).fetch_add(1, Ordering::Relaxed);
            self.count.of(self.at).fetch_sub(1, Ordering::Relaxed);
            self.at = now;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.of(self.at).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Unread {
    /// Watches a response, unless it is [`Lasting`].
    pub fn watch(&self, response: Response<Body>) -> Response<Watched> {
        let is_lasting = response.extensions().get::<Lasting>().is_some();
        let open = (!is_lasting).then(|| Open::begin(&self.0));
        response.map(|body| Watched {
            body,
            rest: Bytes::new(),
            open,
        })
    }

    /// Completes when some answer has been open for `limit`, or up to twice as long, without going on.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn stalled(&self, limit: Duration) {
        loop {
            tokio::time::sleep(limit).await;
            let now = self.0.period.fetch_add(1, Ordering::Relaxed) + 1;
            // Whatever last went on before the period that has just ended. None is older: this was looked for before.
            if self.0.of(now + PERIODS - 2).load(Ordering::Relaxed) > 0 {
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
            match ready!(Pin::new(&mut this.body).poll_frame(context)?) {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
            }
        }
        let length = this.rest.len().min(PART);
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
    use std::future::poll_fn;

    use http_body::Body as _;
    use tokio::time::{Instant, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn long_answer(unread: &Unread) -> Watched {
        unread
            .watch(Response::new(Body::from(vec![0; 100 * PART])))
            .into_body()
    }

    async fn read_part(answer: &mut Watched) {
        let part = poll_fn(|context| Pin::new(&mut *answer).poll_frame(context)).await;
        assert!(matches!(part, Some(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_go_on_is_found_whatever_else_is_read() {
        let unread = Unread::default();
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
            () = unread.stalled(LIMIT) => {}
        }
        assert_eq!(began.elapsed(), 2 * LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_go_on_slowly_or_are_over_do_not_count() {
        let unread = Unread::default();
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
            () = unread.stalled(LIMIT) => panic!("nothing stalls"),
        }
        assert!(timeout(5 * LIMIT, unread.stalled(LIMIT)).await.is_err());
    }
}
