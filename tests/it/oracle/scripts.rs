//! The table of scripts: which requests share a batch, policy by policy. A batch runs 200 ms.

use crate::oracle::{
    compare::{Becomes, Difference, On},
    script::Script,
};

/// The scripts.
pub const SCRIPTS: &[Script] = &[
    Script { name: "without_a_scheduler_each_runs_alone", rows_max: 8, config: "", arrivals: "0 a, 40 b, 80 c" },
    Script {
        name: "what_waits_for_a_busy_instance_is_one_batch",
        rows_max: 8,
        config: "dynamic_batching { }",
        arrivals: "0 a, 40 b, 80 c, 120 d",
    },
    Script {
        name: "a_batch_leaves_when_its_delay_is_over",
        rows_max: 8,
        config: "dynamic_batching { max_queue_delay_microseconds: 120000 }",
        arrivals: "0 a, 40 b, 80 c",
    },
    Script {
        name: "a_batch_of_a_preferred_size_leaves_before_its_delay",
        rows_max: 8,
        config: "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 400000 }",
        arrivals: "0 a, 30 b, 60 c, 90 d",
    },
    Script {
        name: "what_waits_closes_at_the_largest_preferred_size",
        rows_max: 8,
        config: "dynamic_batching { preferred_batch_size: [ 2, 4 ] }",
        arrivals: "0 a, 30 b, 60 c, 90 d, 120 e, 150 f",
    },
    Script {
        name: "with_a_queue_policy_it_is_the_largest_preferred_size_for_both",
        rows_max: 8,
        config: "dynamic_batching { preferred_batch_size: [ 2, 4 ] default_queue_policy { max_queue_size: 100 } }",
        arrivals: "0 a, 30 b, 60 c, 90 d, 120 e, 150 f",
    },
    Script {
        name: "a_full_batch_leaves_before_its_delay",
        rows_max: 3,
        config: "dynamic_batching { max_queue_delay_microseconds: 300000 }",
        arrivals: "0 a, 30 b, 60 c, 90 d, 120 e",
    },
    Script {
        name: "a_request_that_does_not_fit_waits_for_the_next_batch",
        rows_max: 8,
        config: "dynamic_batching { }",
        arrivals: "0 a, 40 b rows=4, 80 c rows=3, 120 d rows=2",
    },
    Script {
        name: "a_request_that_does_not_fit_sends_what_waits_for_its_delay",
        rows_max: 8,
        config: "dynamic_batching { max_queue_delay_microseconds: 300000 }",
        arrivals: "0 a rows=4, 40 b rows=3, 80 c rows=2",
    },
    Script {
        name: "two_instances_share_what_comes",
        rows_max: 8,
        config: "dynamic_batching { }\ninstance_group [ { count: 2 kind: KIND_CPU } ]",
        arrivals: "0 a, 100 b, 130 c, 160 d",
    },
    Script {
        name: "higher_priorities_go_first",
        rows_max: 2,
        config: "dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
        arrivals: "0 a, 30 b priority=3, 60 c priority=1, 90 d, 120 e priority=1",
    },
    Script {
        name: "another_shape_ends_a_batch",
        rows_max: 8,
        config: "dynamic_batching { }",
        arrivals: "0 a, 30 b, 60 c, 90 d columns=2, 120 e",
    },
    Script {
        name: "another_shape_sends_what_waits_for_its_delay",
        rows_max: 8,
        config: "dynamic_batching { max_queue_delay_microseconds: 300000 }",
        arrivals: "0 a, 40 b, 80 c columns=2",
    },
    Script {
        name: "a_request_is_refused_when_its_timeout_passes",
        rows_max: 8,
        config: "dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 120000 } }",
        arrivals: "0 a, 30 b, 130 c",
    },
    Script {
        name: "a_requests_own_timeout_is_the_shorter_one",
        rows_max: 8,
        config: "dynamic_batching { default_queue_policy { default_timeout_microseconds: 400000 allow_timeout_override: true } }",
        arrivals: "0 a, 30 b timeout_us=60000, 60 c timeout_us=900000, 90 d",
    },
    Script {
        name: "a_delayed_request_comes_after_those_in_time",
        rows_max: 2,
        config: "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 80000 } }",
        arrivals: "0 a, 30 b rows=2, 150 c rows=2",
    },
    Script {
        name: "a_queue_holds_no_more_than_its_size",
        rows_max: 8,
        config: "dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
        arrivals: "0 a, 30 b, 60 c, 90 d, 120 e",
    },
];

/// Intended differences in batching.
pub const DIFFERENCES: &[Difference] = &[Difference {
    decision: "a batch is formed when an instance is idle, so it has the largest preferred size that waits; where no \
               queue policy forbids it, Triton closes the next two while the instance is busy, each at the first \
               preferred size that it reaches",
    on: On::Cases(&["what_waits_closes_at_the_largest_preferred_size"]),
    becomes: Becomes::Answer("a | b+c+d+e | f"),
}];
