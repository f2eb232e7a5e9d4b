//! What clients of the 2.x and 3.x generation speak: envelopes with JSON bodies over gRPC.
//!
//! `unary` and `bi_stream` receive, `handler` has one file per type of request, `outgoing` is what goes down the
//! stream, `payload` and `lenient` are the wire forms.

pub mod any;
pub mod bi_stream;
pub mod handler;
pub mod lenient;
pub mod outgoing;
pub mod payload;
pub mod unary;
