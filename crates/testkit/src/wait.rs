//! Waiting for what can be observed.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

/// How long a test waits for anything: far longer than it takes on a busy machine, so that only
/// what never happens runs into it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The first pause between two looks, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Looks again and again until `look` succeeds, for at most [`DEADLINE`], and returns what it
/// found. The condition must be one that stays once it holds.
///
/// # Errors
/// The error of the last look, when the time is over.
pub async fn wait_for<T>(
    what: &str,
    look: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    look_for(what, DEADLINE, look).await
}

async fn look_for<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    let mut pause = PAUSE.0;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(reason) if began.elapsed() > deadline => {
                let waited = began.elapsed().as_secs();
                return Err(reason.context(format!("{what} did not come within {waited} s")));
            }
            Err(_) => tokio::time::sleep(pause).await, // poll
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Waits for a future, for at most [`DEADLINE`].
///
/// # Errors
/// When the time is over.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(DEADLINE, future)
        .await
        .with_context(|| format!("{what} did not come within {} s", DEADLINE.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn looks_until_it_succeeds() {
        let mut looks = 0;
        let found = wait_for("the third look", async || {
            looks += 1;
            anyhow::ensure!(looks == 3, "look {looks}");
            Ok(looks)
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn gives_up_with_the_last_reason() {
        let never = look_for("a miracle", Duration::ZERO, async || {
            anyhow::Result::<()>::Err(anyhow::anyhow!("nothing yet"))
        });
        let error = format!("{:#}", never.await.unwrap_err());
        assert_eq!(error, "a miracle did not come within 0 s: nothing yet");
    }
}
