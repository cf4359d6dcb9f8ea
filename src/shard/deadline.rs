//! The deadline of an answer.

use futures_lite::future;

use crate::error::Error;
use crate::queue::queued_request::deadline_exceeded;
use crate::runtime::executor;
#[cfg(test)]
use crate::runtime::simulation::{SimulatedFault, is_planted};
use crate::time::Instant;

/// Awaits an answer until its deadline. Not an `async fn`, which would hold the answer's future twice.
///
/// # Errors
/// The answer's, or `DeadlineExceeded` if the deadline passes first.
pub fn unless_late<T>(
    answer: impl Future<Output = Result<T, Error>>,
    deadline: Option<Instant>,
) -> impl Future<Output = Result<T, Error>> {
    #[cfg(test)]
    let deadline = deadline.filter(|_| !is_planted(SimulatedFault::DeadlineIgnored));
    let late = async move {
        match deadline {
            Some(deadline) => executor::sleep_until(deadline).await,
            None => future::pending().await,
        }
        Err(deadline_exceeded())
    };
    future::or(answer, late)
}
