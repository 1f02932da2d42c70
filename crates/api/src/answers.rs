//! Memory for answers: bounded over all requests, so that many large answers, or many clients
//! that read slowly, cannot take the memory of the machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tracing::error;

use crate::error::ApiError;
use crate::routes::lost_task;

/// All large answers that are being put together or wait to be read may have so many bytes.
const MEMORY: usize = 64 * 1024 * 1024;
/// And all others, which wait for none of those.
const MEMORY_OF_SMALL: usize = 32 * 1024 * 1024;
/// An answer of so many bytes is a small one: that to a batch of 1,000, or an execution.
const SMALL: usize = 2 * 1024 * 1024;
/// Semaphores count in units of this many bytes.
const UNIT: usize = 1024;
/// How many pages with long parts are put together at once: their rows need several times the
/// bytes of the answer.
const BUILDERS: usize = 2;
/// How many questions are asked of the store at once whose answers may take it long where much waits: fewer than
/// it answers at once, so that submissions do not wait behind them.
const QUESTIONS: usize = 2;
/// How long a request waits for memory before it is refused.
const WAIT: Duration = Duration::from_secs(5);

/// The memory that is left.
pub(crate) struct AnswerMemory {
    units: Arc<Semaphore>,
    units_of_small: Arc<Semaphore>,
    builders: Semaphore,
    questions: Arc<Semaphore>,
}

/// Memory for one answer; freed when the client has read it, or is gone.
pub(crate) struct Reserved(OwnedSemaphorePermit);

impl AnswerMemory {
    pub(crate) fn new() -> Self {
        Self {
            units: Arc::new(Semaphore::new(MEMORY / UNIT)),
            units_of_small: Arc::new(Semaphore::new(MEMORY_OF_SMALL / UNIT)),
            builders: Semaphore::new(BUILDERS),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
        }
    }

    /// Memory for an answer of up to so many bytes.
    ///
    /// # Errors
    /// 503 when too many answers wait to be read.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<Reserved, ApiError> {
        let units = u32::try_from(bytes.min(MEMORY).div_ceil(UNIT)).unwrap_or(u32::MAX);
        let all = match bytes <= SMALL {
            true => &self.units_of_small,
            false => &self.units,
        };
        let permit = Arc::clone(all).acquire_many_owned(units);
        match tokio::time::timeout(WAIT, permit).await {
            Ok(permit) => Ok(Reserved(permit.expect("nobody closes this semaphore"))),
            Err(_) => Err(overloaded()),
        }
    }

    /// The turn to put a page with long parts together.
    ///
    /// # Errors
    /// 503 when too many others do.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        match tokio::time::timeout(WAIT, self.builders.acquire()).await {
            Ok(permit) => Ok(permit.expect("nobody closes this semaphore")),
            Err(_) => Err(overloaded()),
        }
    }

    /// Asks the store something that it may have to look through much for, when it is its turn. Whoever asked may
    /// be gone before the answer is there: the store goes on, and so the next question waits for it.
    ///
    /// # Errors
    /// 503 when too many others ask; the question's own.
    pub(crate) async fn ask<T, E>(
        &self,
        question: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, ApiError>
    where
        T: Send + 'static,
        E: Send + 'static,
        ApiError: From<E>,
    {
        let turn = Arc::clone(&self.questions).acquire_owned();
        let turn = tokio::time::timeout(WAIT, turn).await.map_err(|_| {
            let words = "too many others ask for lists and counts; ask again later";
            ApiError::unavailable("OVERLOADED", words)
        })?;
        let asked = tokio::spawn(async move {
            let answer = question.await;
            drop(turn);
            answer
        });
        Ok(asked.await.map_err(lost_task)??)
    }
}

fn overloaded() -> ApiError {
    ApiError::unavailable(
        "OVERLOADED",
        "too many large answers wait to be read; ask again, or for less",
    )
}

impl Reserved {
    /// Keeps so many units; `false` when so many are not there.
    fn resize(&mut self, units: usize) -> bool {
        if let Some(kept) = self.0.split(units) {
            self.0 = kept;
            return true;
        }
        let missing = u32::try_from(units - self.0.num_permits()).unwrap_or(u32::MAX);
        let more = Arc::clone(self.0.semaphore()).try_acquire_many_owned(missing);
        more.map(|more| self.0.merge(more)).is_ok()
    }

    /// The answer, which keeps as much memory as it has bytes; 503 where it has more than was reserved,
    /// and too many others wait to be read.
    pub(crate) fn json(mut self, value: &impl Serialize) -> Response {
        let json = match serde_json::to_vec(value) {
            Ok(json) => json,
            Err(error) => {
                error!(error.message = %error, "an answer could not be written");
                return ApiError::internal().into_response();
            }
        };
        if !self.resize(json.len().div_ceil(UNIT)) {
            return overloaded().into_response();
        }
        let bytes = Bytes::from_owner(Held {
            json,
            _memory: self,
        });
        let content_type = (header::CONTENT_TYPE, "application/json");
        ([content_type], Body::from(bytes)).into_response()
    }
}

/// The bytes of an answer and the memory that they count against.
struct Held {
    json: Vec<u8>,
    _memory: Reserved,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

/// What is left of a page's bytes.
pub(crate) struct PageBudget {
    left: usize,
    empty: bool,
}

impl PageBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            left: bytes,
            empty: true,
        }
    }

    /// Whether the row goes on the page; the first always does, however long it is.
    pub(crate) fn takes(&mut self, row: &impl Serialize) -> bool {
        let mut counted = Counted(0);
        // What cannot be written fails when the page is.
        drop(serde_json::to_writer(&mut counted, row));
        let fits = std::mem::take(&mut self.empty) || counted.0 <= self.left;
        self.left = self.left.saturating_sub(counted.0);
        fits
    }
}

/// Counts what is written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_before_the_row_that_is_too_much() {
        let mut budget = PageBudget::new(10);
        assert!(budget.takes(&"12345678"));
        assert!(!budget.takes(&""));
        let mut budget = PageBudget::new(10);
        assert!(budget.takes(&"far longer than the page"));
        assert!(!budget.takes(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn memory_comes_back_when_an_answer_is_read() {
        let memory = AnswerMemory::new();
        let all = memory.reserve(MEMORY).await.ok().unwrap();
        assert!(memory.reserve(SMALL + 1).await.is_err());
        let answer = all.json(&"x".repeat(3 * SMALL));
        let rest = memory.reserve(MEMORY - 3 * SMALL - UNIT).await.ok();
        assert!(rest.is_some());
        assert!(memory.reserve(SMALL + UNIT).await.is_err());
        drop(answer);
        assert!(memory.reserve(3 * SMALL + UNIT).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_larger_than_it_was_to_be_counts_as_a_whole() {
        let memory = AnswerMemory::new();
        let half = MEMORY_OF_SMALL / 2;
        let large = || async {
            memory
                .reserve(UNIT)
                .await
                .ok()
                .unwrap()
                .json(&"x".repeat(half))
        };
        let answer = large().await;
        assert_eq!(answer.status(), 200);
        assert_eq!(large().await.status(), 503);
        drop(answer);
        assert_eq!(large().await.status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_answer_waits_for_no_large_one() {
        let memory = AnswerMemory::new();
        let _all = memory.reserve(MEMORY).await.ok().unwrap();
        let waits = memory.reserve(MEMORY);
        let small = async {
            let asked = tokio::time::Instant::now();
            assert!(memory.reserve(SMALL).await.is_ok());
            asked.elapsed()
        };
        let (refused, waited) = tokio::join!(waits, small);
        assert!(refused.is_err() && waited.is_zero(), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_counts_until_it_is_answered_whoever_has_left() {
        let memory = AnswerMemory::new();
        let (answer, _) = tokio::sync::broadcast::channel::<()>(1);
        let question = || {
            let mut answered = answer.subscribe();
            async move {
                let _ = answered.recv().await;
                Ok::<_, ApiError>(())
            }
        };
        for _ in 0..QUESTIONS {
            // Who asks leaves after a second.
            let asked = memory.ask(question());
            let left = tokio::time::timeout(Duration::from_secs(1), asked).await;
            assert!(left.is_err());
        }
        let refused = memory.ask(question()).await.unwrap_err();
        assert_eq!(refused.detail.code, "OVERLOADED");
        answer.send(()).unwrap();
        let ready = async { Ok::<_, ApiError>(7) };
        assert_eq!(memory.ask(ready).await.ok(), Some(7));
    }
}
