//! Gives the HTTP library's own refusal of a malformed HTTP/1 request a text, as every other refusal has one.
//!
//! The library answers such a request itself, with an empty body, before any of our code sees it, and then closes.
//! That answer is recognised by its first bytes on the way out, which none of our own answers has.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const REFUSAL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n";
const EXPLAINED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain;charset=UTF-8\r\ncontent-length: 145\r\n\r\n\
the request cannot be read: this port speaks HTTP without TLS; quotes, braces, blanks and the like must be percent-escaped in an address or query";

/// A connection whose refusals are explained.
#[derive(Debug)]
pub struct Explain<S> {
    stream: S,
    /// What is still to be written in place of a refusal.
    rest: &'static [u8],
}

impl<S> Explain<S> {
    /// Wraps a connection.
    pub fn new(stream: S) -> Self {
        Explain { stream, rest: b"" }
    }
}

impl<S: AsyncWrite + Unpin> Explain<S> {
    /// Writes the explanation and reports `length` bytes, those of the refusal, as written.
    fn poll_explain(&mut self, context: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        if self.rest.is_empty() {
            self.rest = EXPLAINED;
        }
        while !self.rest.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, self.rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.rest = self.rest.get(written..).unwrap_or_default();
        }
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Explain<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explain<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.starts_with(REFUSAL) {
            return this.poll_explain(context, bytes.len());
        }
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if slices.first().is_some_and(|first| first.starts_with(REFUSAL)) {
            return this.poll_explain(context, slices.iter().map(|slice| slice.len()).sum());
        }
        Pin::new(&mut this.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_refusal_gets_a_text_and_nothing_else_is_touched() {
        let mut explain = Explain::new(Vec::new());
        explain.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let refusal = [REFUSAL, b"date: x\r\n\r\n"].concat();
        explain.write_all(&refusal).await.unwrap();
        assert_eq!(
            explain.stream,
            [&b"HTTP/1.1 200 OK\r\n\r\n"[..], EXPLAINED].concat()
        );
    }

    #[test]
    fn the_length_is_right() {
        let text = std::str::from_utf8(EXPLAINED).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
    }
}
