//! Asks a model's own code whether it is ready, once for all callers at the same time, from any
//! shard. Most models have no such code: the first question finds that out, and costs nothing
//! afterwards. Bounded by `MODEL_READY_ASKERS_MAX`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::MODEL_READY_ASKERS_MAX;
use crate::one_shot::{Lease, OneShotReceiver, OneShotSender, one_shot};
use crate::sync::{AtomicBool, SharedQueue};
use backend::LoadedModel;
use base::error::Error;

/// The question to one model version, and the callers that wait for its answer.
#[derive(Default)]
pub struct Readiness {
    has_no_code: AtomicBool,
    /// True if the model was asked and has not answered.
    is_asked: AtomicBool,
    waiting: SharedQueue<OneShotSender<bool, AskerLease>>,
    askers: Arc<AtomicUsize>,
}

/// A place among the callers that wait.
struct AskerLease(Arc<AtomicUsize>);

impl AskerLease {
    fn take(askers: &Arc<AtomicUsize>) -> Option<Self> {
        let one_more = |count: usize| (count < MODEL_READY_ASKERS_MAX).then_some(count + 1);
        askers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(askers)))
    }
}

impl Drop for AskerLease {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lease for AskerLease {
    fn closed() -> Error {
        Error::unavailable("the model was not asked whether it is ready")
    }
}

impl Readiness {
    /// Asks the model, or joins the callers that wait for its answer; `None` if it has no code that
    /// could say no. The answer may never come: the caller limits its wait.
    ///
    /// # Errors
    /// `Unavailable` if too many callers wait.
    pub fn ask(self: &Arc<Self>, loaded: &dyn LoadedModel) -> Result<Option<OneShotReceiver<bool>>, Error> {
        if self.has_no_code.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let lease = AskerLease::take(&self.askers).ok_or_else(AskerLease::closed)?;
        let (sender, receiver) = one_shot(lease);
        // Pushed before the check: the answer of a question that is still open is for this caller
        // too.
        self.waiting.push(sender);
        if !self.is_asked.swap(true, Ordering::SeqCst) {
            let answer = AnswerOnDrop(Some(Arc::clone(self)));
            let unused = loaded.ask_ready(Box::new(move |is_ready| answer.send(is_ready)));
            if unused.is_some() {
                self.has_no_code.store(true, Ordering::Relaxed);
                // Answers callers that joined meanwhile.
                drop(unused);
                return Ok(None);
            }
        }
        Ok(Some(receiver))
    }

    fn answer(&self, is_ready: bool) {
        // First: a caller that pushed before has seen the question open and does not ask; one that
        // pushes after asks again.
        self.is_asked.store(false, Ordering::SeqCst);
        while let Some(sender) = self.waiting.pop() {
            sender.send(Ok(is_ready));
        }
    }
}

/// Answers the callers that wait, at the latest when it is dropped: code that is gone is not ready.
struct AnswerOnDrop(Option<Arc<Readiness>>);

impl AnswerOnDrop {
    fn send(mut self, is_ready: bool) {
        if let Some(readiness) = self.0.take() {
            readiness.answer(is_ready);
        }
    }
}

impl Drop for AnswerOnDrop {
    fn drop(&mut self) {
        if let Some(readiness) = self.0.take() {
            let is_ready = readiness.has_no_code.load(Ordering::Relaxed);
            readiness.answer(is_ready);
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_types, reason = "a test keeps what it is given behind a lock")]
mod tests {
    use std::sync::Mutex;

    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use backend::{Instance, ReadyReply, Threads};

    /// A model that keeps its questions, if it has code to answer them.
    #[derive(Default)]
    struct Asked {
        has_code: bool,
        count: AtomicUsize,
        open: Mutex<Vec<ReadyReply>>,
    }

    impl LoadedModel for Asked {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Err(Error::internal("it has none"))
        }

        fn may_run_inline(&self) -> bool {
            false
        }

        fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
            self.count.fetch_add(1, Ordering::SeqCst);
            if !self.has_code {
                return Some(reply);
            }
            self.open.lock().unwrap().push(reply);
            None
        }
    }

    impl Asked {
        fn count(&self) -> usize {
            self.count.load(Ordering::SeqCst)
        }

        fn reply(&self) -> ReadyReply {
            self.open.lock().unwrap().remove(0)
        }
    }

    fn now(receiver: &mut OneShotReceiver<bool>) -> Option<bool> {
        block_on(poll_once(receiver)).map(|outcome| outcome.unwrap())
    }

    #[test]
    fn those_who_ask_at_the_same_time_share_one_question() {
        let (readiness, model) = (Arc::new(Readiness::default()), Asked { has_code: true, ..Asked::default() });
        let mut asked: Vec<_> = (0..3).map(|_| readiness.ask(&model).unwrap().unwrap()).collect();
        assert_eq!((model.count(), now(&mut asked[0])), (1, None));
        model.reply()(false);
        assert!(asked.iter_mut().all(|receiver| now(receiver) == Some(false)));
        let mut again = readiness.ask(&model).unwrap().unwrap();
        assert_eq!(model.count(), 2, "a later one asks again");
        model.reply()(true);
        assert_eq!(now(&mut again), Some(true));
        let mut lost = readiness.ask(&model).unwrap().unwrap();
        drop(model.reply());
        assert_eq!(now(&mut lost), Some(false), "a question that nobody will answer");
    }

    #[test]
    fn a_model_without_such_code_is_asked_once() {
        let (readiness, model) = (Arc::new(Readiness::default()), Asked::default());
        for _ in 0..3 {
            assert!(readiness.ask(&model).unwrap().is_none());
        }
        assert_eq!((model.count(), readiness.askers.load(Ordering::SeqCst)), (1, 0));
    }

    #[test]
    fn a_model_that_never_answers_has_a_bounded_number_of_askers() {
        let (readiness, model) = (Arc::new(Readiness::default()), Asked { has_code: true, ..Asked::default() });
        for _ in 0..MODEL_READY_ASKERS_MAX {
            assert!(readiness.ask(&model).unwrap().is_some(), "one that gave up waits in the queue all the same");
        }
        assert!(readiness.ask(&model).is_err());
        model.reply()(true);
        assert!(readiness.ask(&model).unwrap().is_some());
    }

    #[test]
    fn no_asker_is_forgotten_whatever_the_threads_do() {
        let (readiness, model) = (Arc::new(Readiness::default()), Asked { has_code: true, ..Asked::default() });
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                for _ in 0..2_000 {
                    while model.open.lock().unwrap().is_empty() {
                        if readiness.askers.load(Ordering::SeqCst) == usize::MAX / 2 {
                            return;
                        }
                        std::thread::yield_now();
                    }
                    model.reply()(true);
                }
            });
            let ask = || {
                for _ in 0..500 {
                    let receiver = readiness.ask(&model).unwrap().unwrap();
                    assert_eq!(block_on(receiver), Ok(true));
                }
            };
            let askers: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
            askers.into_iter().for_each(|asker| asker.join().unwrap());
            // Ends the thread that answers, regardless of how many questions were shared.
            readiness.askers.store(usize::MAX / 2, Ordering::SeqCst);
            answering.join().unwrap();
        });
    }
}
