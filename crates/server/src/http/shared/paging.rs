//! Pages of v3: which part of a list is asked for, and what stands around it.

use crate::error::HttpFailure;
use crate::http::params::Params;
use crate::http::reply::Reply;
use crate::json;

/// Part of a list that a call asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    no: usize,
    size: usize,
}

impl Page {
    /// Reads `pageNo` (1 unless given) and `pageSize` (100 unless given).
    ///
    /// # Errors
    /// 400 for a number below 1.
    pub fn read(params: &Params) -> Result<Self, HttpFailure> {
        let read = |name, default: i64| {
            let value = params.integer(name)?.unwrap_or(default);
            let positive = usize::try_from(value).ok().filter(|value| *value > 0);
            positive.ok_or_else(|| {
                let text =
                    format!("Required parameter '{name}' should be positive integer, current is {value}");
                HttpFailure::invalid(text)
            })
        };
        Ok(Page {
            no: read("pageNo", 1)?,
            size: read("pageSize", 100)?,
        })
    }

    /// The part of `items`.
    pub fn of<T>(self, items: &[T]) -> &[T] {
        slice(items, self.no, self.size)
    }

    /// The answer with this part of `items`, each written by `write`.
    pub fn reply<T>(self, params: &Params, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) -> Reply {
        Reply::data(params.api(), |out| {
            out.extend_from_slice(b"{\"totalCount\":");
            json::unsigned(out, items.len() as u64);
            json::member(out, "pageNumber");
            json::unsigned(out, self.no as u64);
            json::member(out, "pagesAvailable");
            // One too many when the last page is full, as recorded.
            let available = if items.is_empty() {
                0
            } else {
                items.len() / self.size + 1
            };
            json::unsigned(out, available as u64);
            json::member(out, "pageItems");
            json::list(out, self.of(items), write);
            out.push(b'}');
        })
    }
}

/// Page `no`, counted from 1, of `items`; empty behind the end. 0 counts as 1.
pub fn slice<T>(items: &[T], no: usize, size: usize) -> &[T] {
    let start = no.saturating_sub(1).saturating_mul(size).min(items.len());
    let end = start.saturating_add(size).min(items.len());
    items.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::http::api::{Api, Lack};
    use crate::http::params::BodyKind;

    fn page(query: &str) -> Result<Page, HttpFailure> {
        let params = Params::read(query, &Bytes::new(), &BodyKind::Form).unwrap();
        Page::read(&params.of(Api::V3, Lack::Form))
    }

    #[test]
    fn pages_are_counted_from_one_and_have_a_size() {
        assert_eq!(page(""), Ok(Page { no: 1, size: 100 }));
        assert_eq!(
            page("pageNo=0").map_err(|f| (f.code.number, f.text)),
            Err((
                20002,
                "Required parameter 'pageNo' should be positive integer, current is 0".into()
            ))
        );
        assert!(page("pageSize=-1").is_err() && page("pageSize=x").is_err());
    }

    #[test]
    fn a_page_behind_the_end_is_empty() {
        assert_eq!(slice(&[1, 2, 3], 2, 2), [3]);
        assert_eq!(slice(&[1, 2, 3], 0, 2), [1, 2]);
        assert!(slice(&[1, 2, 3], usize::MAX, usize::MAX).is_empty());
    }
}
