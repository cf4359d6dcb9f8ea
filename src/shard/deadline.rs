//! The deadline of an answer.

use futures_lite::future;

use crate::error::Error;
use crate::queue::queued_request::deadline_exceeded;
use crate::runtime::executor;
#[cfg(test)]
use crate::runtime::simulation::{SimulatedFault, is_planted};
use crate::time::Instant;

/// Awaits an answer until its deadline.
///
/// # Errors
/// The answer's, or `DeadlineExceeded` if the deadline passes first.
pub async fn unless_late<T>(
    answer: impl Future<Output = Result<T, Error>>,
    deadline: Option<Instant>,
) -> Result<T, Error> {
    #[cfg(test)]
    let deadline = deadline.filter(|_| !is_planted(SimulatedFault::DeadlineIgnored));
    let Some(deadline) = deadline else { return answer.await };
    let late = async {
        executor::sleep_until(deadline).await;
        Err(deadline_exceeded())
    };
    future::or(answer, late).await
}
