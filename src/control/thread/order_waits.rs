//! The orders that models have given and wait for, perhaps in their own loads: a Python model may
//! load another while it is initialized. Such a load lends its thread to others, since with few
//! threads none would go on otherwise. An order that closes a circle of loads is refused. Pure.
//! Bounded by the orders that may be open.

use std::sync::{Arc, Weak};

use crate::shard::services::control_request::OrderOrigin;

/// The open orders of models.
#[derive(Default)]
pub struct OrderWaits {
    open: Vec<OpenOrder>,
}

struct OpenOrder {
    /// Gone when the order is answered.
    origin: Weak<OrderOrigin>,
    /// The model that is to be loaded or unloaded.
    target: String,
}

impl OrderWaits {
    /// A model has given an order for a model.
    pub fn handle_order(&mut self, origin: &Arc<OrderOrigin>, target: &str) {
        self.open.retain(|order| order.origin.strong_count() > 0);
        self.open.push(OpenOrder { origin: Arc::downgrade(origin), target: target.to_owned() });
    }

    /// Returns the models whose orders this one waits for.
    pub fn waits_for(&self, model: &str) -> Vec<String> {
        let is_its = |order: &&OpenOrder| {
            order.origin.upgrade().is_some_and(|origin| origin.callers.iter().any(|caller| caller == model))
        };
        self.open.iter().filter(is_its).map(|order| order.target.clone()).collect()
    }

    /// Returns the number of loads that wait for orders.
    pub fn waiting_loads(&self, is_loading: impl Fn(&str) -> bool) -> usize {
        let origins: Vec<_> = self.open.iter().filter_map(|order| order.origin.upgrade()).collect();
        let mut callers: Vec<&str> = origins.iter().flat_map(|origin| &origin.callers).map(String::as_str).collect();
        callers.sort_unstable();
        callers.dedup();
        callers.into_iter().filter(|caller| is_loading(caller)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_waits_until_its_order_is_answered() {
        let mut waits = OrderWaits::default();
        let origin = |callers: &[&str]| {
            Arc::new(OrderOrigin { callers: callers.iter().map(|caller| (*caller).to_owned()).collect() })
        };
        let (one, two, three) = (origin(&["a"]), origin(&["a", "b"]), origin(&["c"]));
        waits.handle_order(&one, "x");
        waits.handle_order(&two, "y");
        waits.handle_order(&three, "a");
        assert_eq!((waits.waits_for("a"), waits.waits_for("b")), (vec!["x".into(), "y".into()], vec!["y".into()]));
        assert_eq!(waits.waiting_loads(|_| true), 3);
        assert_eq!(waits.waiting_loads(|model| model == "a"), 1, "once, however many orders it gave");
        drop(one);
        assert_eq!(waits.waits_for("a"), ["y"]);
        drop((two, three));
        assert_eq!((waits.waits_for("a").len(), waits.waiting_loads(|_| true)), (0, 0));
        waits.handle_order(&origin(&["d"]), "z");
        assert_eq!(waits.open.len(), 1, "those that were answered are forgotten");
    }
}
