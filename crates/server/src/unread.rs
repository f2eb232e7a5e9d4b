//! Answers that the other end does not read: each holds memory, so a connection that leaves them lying is closed.
//!
//! On an HTTP/1 connection the socket itself stands still, which its write limit sees. On an HTTP/2 connection the socket
//! may go on while the window of a stream stays shut. So long answers are given in parts: the next one is only asked for
//! when the window is open, and an answer that is never asked for its next part is not read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

#[derive(Debug, Default)]
struct Count {
    open: AtomicUsize,
    /// Rises whenever an answer begins, goes on or ends.
    steps: AtomicU64,
}

impl Unread {
    /// Watches a response, unless it is [`Lasting`].
    pub fn watch(&self, response: Response<Body>) -> Response<Watched> {
        let is_lasting = response.extensions().get::<Lasting>().is_some();
        let count = (!is_lasting).then(|| {
            self.0.open.fetch_add(1, Ordering::Relaxed);
            self.0.steps.fetch_add(1, Ordering::Relaxed);
            self.0.clone()
        });
        response.map(|body| Watched {
            body,
            rest: Bytes::new(),
            count,
        })
    }

    /// Completes when for `limit`, or up to twice as long, some answer was open and none went on.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn stalled(&self, limit: Duration) {
        loop {
            let before = self.0.steps.load(Ordering::Relaxed);
            tokio::time::sleep(limit).await;
            let is_open = self.0.open.load(Ordering::Relaxed) > 0;
            if is_open && self.0.steps.load(Ordering::Relaxed) == before {
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
    count: Option<Arc<Count>>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if let Some(count) = &this.count {
            count.steps.fetch_add(1, Ordering::Relaxed);
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

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(count) = &self.count {
            count.open.fetch_sub(1, Ordering::Relaxed);
            count.steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}
