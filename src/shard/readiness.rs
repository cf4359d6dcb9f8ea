//! Whether a model is ready, by the state of its instances and by what its own code says. Only a model that has such
//! code is waited for, up to [`MODEL_READY_TIMEOUT`].

use std::rc::Rc;

use smallvec::SmallVec;

use crate::error::Error;
use crate::limits::MODEL_READY_TIMEOUT;
use crate::queue::one_shot::OneShotReceiver;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::infer::unless_late;
use crate::shard::model_table::LocalModel;

/// Questions that are open at the same time: those to the models of an ensemble.
type OpenQuestions = SmallVec<[OneShotReceiver<bool>; 1]>;

impl Shard {
    /// Whether a model version is ready; without a version, the one that a request would get. A model that is unknown or
    /// does not serve is not.
    pub async fn is_told_ready(&self, name: &str, version: Option<u64>) -> bool {
        match self.models.find(name, version) {
            Ok(model) => self.is_ready_by_its_code(&model).await,
            Err(_) => false,
        }
    }

    /// Whether a model can serve and its own code, if it has any, says that it is ready; for an ensemble, all of its
    /// models.
    pub async fn is_ready_by_its_code(&self, model: &Rc<LocalModel>) -> bool {
        if !self.is_model_ready(model) {
            return false;
        }
        match self.ask_all(model) {
            Ok(questions) if questions.is_empty() => true,
            // Boxed: few models have such code.
            Ok(questions) => Box::pin(are_all_ready(questions)).await,
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

/// Whether all answers are yes and come in time.
async fn are_all_ready(questions: OpenQuestions) -> bool {
    let all = async {
        for question in questions {
            if !question.await? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    unless_late(all, Some(clock::now() + MODEL_READY_TIMEOUT)).await.unwrap_or(false)
}
