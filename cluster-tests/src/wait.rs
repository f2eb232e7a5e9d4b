//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout_at};

/// Pause between two tries.
pub const PAUSE: Duration = Duration::from_millis(20);

/// Repeats `check` until it succeeds, and gives what it gave.
///
/// # Panics
/// It has not succeeded `within` the time; the message says `what` was awaited and why the last try failed.
pub async fn eventually<T, F, Fut>(what: &str, within: Duration, check: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    match try_eventually(within, check).await {
        Ok(value) => value,
        Err(error) => panic!("not within {within:?}: {what}: {error:#}"),
    }
}

/// As [`eventually`], but the last failure is returned.
///
/// # Errors
/// Why the last try failed.
pub async fn try_eventually<T, F, Fut>(within: Duration, mut check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + within;
    let mut last = anyhow!("the first try did not end");
    loop {
        match timeout_at(deadline, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            Err(_) => return Err(last.context("the last try did not end in time")),
        }
        if Instant::now() + PAUSE > deadline {
            return Err(last);
        }
        sleep(PAUSE).await;
    }
}

/// Repeats `check` for the whole time; it must succeed each time.
///
/// # Panics
/// It failed once; the message says `what` should have held and why it did not.
pub async fn always<F, Fut>(what: &str, during: Duration, mut check: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let start = Instant::now();
    while start.elapsed() < during {
        if let Err(error) = check().await {
            panic!("after {:?} no longer: {what}: {error:#}", start.elapsed());
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_that_comes_true_is_awaited() {
        let mut tries = 0;
        let value = eventually("third try", Duration::from_secs(5), || {
            tries += 1;
            let now = tries;
            async move {
                if now >= 3 {
                    Ok(now)
                } else {
                    Err(anyhow!("try {now}"))
                }
            }
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test]
    async fn the_last_failure_is_told() {
        let never = || async { Err::<(), _>(anyhow!("no luck")) };
        let error = try_eventually(Duration::from_millis(60), never)
            .await
            .map_err(|e| e.to_string());
        assert_eq!(error, Err("no luck".into()));
    }
}
