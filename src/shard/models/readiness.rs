//! The readiness of a model, by the state of its instances and by its own code. Only a model that
//! has such code is waited for, up to [`MODEL_READY_TIMEOUT`].

use std::rc::Rc;

use smallvec::SmallVec;

use crate::error::{Code, Error};
use crate::limits::MODEL_READY_TIMEOUT;
use crate::queue::one_shot::OneShotReceiver;
use crate::runtime::clock;
use crate::shard::deadline::unless_late;
use crate::shard::models::model_table::{LocalModel, ModelTable};
use crate::time::Instant;

/// Questions that are open at the same time: those to the models of an ensemble.
type OpenQuestions = SmallVec<[OneShotReceiver<bool>; 1]>;

impl ModelTable {
    /// Returns true if a model version is ready; without a version, the one that a request would
    /// get. A model that is unknown or does not serve is not.
    pub async fn is_told_ready(&self, name: &str, version: Option<u64>) -> bool {
        if self.want(name, None).await.is_err() {
            return false;
        }
        match self.find(name, version) {
            Ok(model) => self.is_ready_by_its_code(&model).await,
            Err(_) => false,
        }
    }

    /// Returns true if a model version is ready, or without a version, the one that a request would get; false if it is
    /// loading, failed to load or was unloaded.
    ///
    /// # Errors
    /// The refusal of an unknown model or version.
    pub async fn readiness(&self, name: &str, version: Option<u64>) -> Result<bool, Error> {
        match self.want(name, None).await {
            // An unknown model is reported below like any other.
            Ok(()) => {}
            Err(error) if error.code() == Code::NotFound => {}
            Err(_) => return Ok(false),
        }
        match self.find(name, version) {
            Ok(model) => Ok(self.is_ready_by_its_code(&model).await),
            Err(_) if self.overview().has(name, version) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns true if a model can serve now, with an instance that is not just being recreated,
    /// and its own code, if it has any, says that it is ready; for an ensemble, all of its models.
    pub async fn is_ready_by_its_code(&self, model: &Rc<LocalModel>) -> bool {
        if !self.is_model_ready(model) || !self.reached(model).iter().all(|it| it.served().has_instance()) {
            return false;
        }
        match self.ask_all(model) {
            Ok(questions) if questions.is_empty() => true,
            // Boxed: few models have such code.
            Ok(questions) => Box::pin(are_all_ready(questions, clock::now() + MODEL_READY_TIMEOUT)).await,
            Err(_) => false,
        }
    }

    fn ask_all(&self, model: &Rc<LocalModel>) -> Result<OpenQuestions, Error> {
        let mut questions = OpenQuestions::new();
        for reached in self.reached(model) {
            questions.extend(reached.served().ask_ready()?);
        }
        Ok(questions)
    }
}

/// Returns true if all answers are yes and come in time.
async fn are_all_ready(questions: OpenQuestions, deadline: Instant) -> bool {
    let all = async {
        for question in questions {
            if !question.await? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    unless_late(all, Some(deadline)).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::queue::one_shot::{Lease, OneShotSender, one_shot};
    use crate::runtime::executor::{IoPath, Runtime};
    use crate::runtime::ring::spin::Spin;

    struct Free;

    impl Lease for Free {
        fn closed() -> Error {
            Error::unavailable("closed")
        }
    }

    /// Asks `count` models, lets them answer, and waits for the answers.
    fn outcome(count: usize, answer: impl FnOnce(&mut Vec<OneShotSender<bool, Free>>)) -> bool {
        let (mut senders, questions): (Vec<_>, OpenQuestions) = (0..count).map(|_| one_shot(Free)).unzip();
        answer(&mut senders);
        let runtime = Runtime::new(IoPath::Epoll, Spin::Off).unwrap();
        runtime.run(are_all_ready(questions, clock::now() + Duration::from_millis(20))).unwrap()
    }

    #[test]
    fn a_model_is_ready_if_all_that_were_asked_say_so_in_time() {
        let say = |answers: &'static [bool]| {
            move |senders: &mut Vec<OneShotSender<bool, Free>>| {
                answers.iter().for_each(|is_ready| senders.remove(0).send(Ok(*is_ready)));
            }
        };
        assert!(outcome(2, say(&[true, true])));
        assert!(!outcome(2, say(&[true, false])));
        assert!(!outcome(2, say(&[true])), "the other is late");
        assert!(!outcome(1, Vec::clear), "its code is gone");
    }
}
