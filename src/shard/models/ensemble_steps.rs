//! The wiring of an ensemble's tensors between the model versions that serve now, cached until one of the versions is
//! replaced.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::ensemble::Wiring;
use crate::model::spec::ensemble::Ensemble;
use crate::scheduler::ensemble::{StepEdges, StepGraph};

/// The cached wiring of an ensemble, one per shard.
#[derive(Default)]
pub struct EnsembleSteps {
    bound: RefCell<Option<Rc<BoundSteps>>>,
}

/// The wiring for certain versions of the step models.
pub(in crate::shard) struct BoundSteps {
    pub(in crate::shard) specs: Vec<Arc<ModelSpec>>,
    pub(in crate::shard) wiring: Wiring,
    pub(in crate::shard) graph: Arc<StepGraph>,
}

impl EnsembleSteps {
    /// The wiring between these models: the cached one, unless one of the models was replaced since.
    ///
    /// # Errors
    /// If the tensors of the models no longer fit together, or a step has become decoupled and the
    /// ensemble is not.
    pub(in crate::shard) fn bind<'a>(
        &self,
        spec: &ModelSpec,
        ensemble: &Ensemble,
        models: impl ExactSizeIterator<Item = &'a Arc<ModelSpec>> + Clone,
    ) -> Result<Rc<BoundSteps>, Error> {
        let is_same = |bound: &&Rc<BoundSteps>| {
            bound.specs.len() == models.len()
                && bound.specs.iter().zip(models.clone()).all(|(spec, other)| Arc::ptr_eq(spec, other))
        };
        if let Some(bound) = self.bound.borrow().as_ref().filter(is_same) {
            return Ok(Rc::clone(bound));
        }
        let specs: Vec<_> = models.map(Arc::clone).collect();
        let members: Vec<&ModelSpec> = specs.iter().map(|spec| &**spec).collect();
        let wiring = Wiring::new(spec, ensemble, &members)?;
        if wiring.is_decoupled && !spec.is_decoupled {
            return Err(Error::unavailable("one of its models is decoupled now; the ensemble is being reloaded"));
        }
        let tensors = |wires: &[(usize, usize)]| wires.iter().map(|(_, tensor)| *tensor).collect();
        let edges = wiring.steps.iter().zip(&specs).map(|(step, spec)| StepEdges {
            inputs: tensors(&step.inputs),
            outputs: tensors(&step.outputs),
            is_decoupled: spec.is_decoupled,
        });
        let graph = Arc::new(StepGraph::new(edges.collect(), ensemble.tensors.len(), &ensemble.inputs));
        let bound = Rc::new(BoundSteps { specs, wiring, graph });
        self.bound.replace(Some(Rc::clone(&bound)));
        Ok(bound)
    }
}
