use super::*;

fn need(text: &str) -> Need {
    // `r:4`, or `r:4:global`.
    let mut words = text.split(':');
    let name = words.next().unwrap().to_owned();
    let count = words.next().unwrap().parse().unwrap();
    Need { name, is_global: words.next().is_some(), count }
}

/// `2 r:4 s:1:global`: a priority and needs.
fn demand(text: &str) -> Demand {
    let mut words = text.split_whitespace();
    let priority = words.next().unwrap().parse().unwrap();
    Demand { device: 0, priority, needs: words.map(need).collect() }
}

fn supply(text: &str) -> Supply {
    let mut words = text.split(':');
    let name = words.next().unwrap().to_owned();
    let count = words.next().unwrap().parse().unwrap();
    Supply { name, count, device: words.next().map(|word| word.parse().unwrap()) }
}

fn pools(supplies: &str) -> Pools {
    Pools::new(supplies.split_whitespace().map(supply).collect())
}

fn rate(demands: &[&str]) -> Rate {
    let mut pools = pools("");
    let demands: Vec<_> = demands.iter().map(|text| demand(text)).collect();
    pools.register(&demands).unwrap();
    pools.into_rate()
}

/// How much there is, as the example of Triton's documents shows it.
fn limits(supplies: &str, models: &[&str]) -> Result<String, String> {
    let mut pools = pools(supplies);
    for model in models {
        pools.register(&[demand(model)]).map_err(|error| error.to_string())?;
    }
    let limits = pools.limits().unwrap();
    let line = |((site, name), limit): (&Key, &u64)| match site {
        Site::Device(_) => format!("{name}: {limit}"),
        Site::Global => format!("{name}: {limit} of all"),
    };
    Ok(limits.iter().map(line).collect::<Vec<_>>().join(", "))
}

#[test]
fn there_is_as_much_of_a_resource_as_one_instance_needs_at_most_or_as_a_flag_says() {
    let check = |supplies: &str, want: &str| {
        let models = ["1 R1:4 R2:4", "1 R2:5 R3:10:global R4:5", "1 R1:1 R3:7:global R4:2"];
        assert_eq!(limits(supplies, &models).unwrap_or_else(|error| error), want, "{supplies}");
    };
    check("", "R1: 4, R2: 5, R4: 5, R3: 10 of all");
    check("R1:10 r2:9:0 R2:8:1 R3:12:7 R4:5", "R1: 10, R2: 9, R4: 5, R3: 12 of all");
    let short = |name: &str, limit: u64, required: u64| {
        format!(
            "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more model \
             instances, the minimum required count is {required}"
        )
    };
    check("R1:3", &short("R1", 3, 4));
    check("R1:4 R2:5:1 R3:10 R4:5", &short("R2", 0, 4));
    check("R1:4 R2:4 R3:10 R4:5", &short("R2", 4, 5));
    check("R5:1", &short("R1", 0, 4));
    let both = "Resource \"r\" is present as both global and device-specific resource in the model configuration.";
    assert_eq!(limits("", &["1 r:1", "1 r:1:global"]), Err(both.to_owned()));
    assert_eq!(limits("", &["1 r:1 r:3 r:2"]).unwrap(), "r: 2", "the last of a name");
}

#[test]
fn a_model_that_cannot_be_registered_leaves_nothing_behind() {
    let mut pools = pools("r:2");
    assert_eq!(pools.register(&[demand("1 r:2"), demand("1 r:1")]), Ok(0..2));
    assert!(pools.register(&[demand("1 r:1"), demand("1 r:3")]).is_err());
    assert_eq!(pools.register(&[demand("1 r:1")]), Ok(2..3));
}

/// Runs a script: `a` asks, `a!` begins, `a.` ends, `a-` withdraws, `a,` ends and asks at once.
/// Answers who was granted after each step, where somebody was.
fn script(demands: &[&str], steps: &str) -> String {
    let mut rate = rate(demands);
    let mut out = Vec::new();
    for step in steps.split_whitespace() {
        let id = usize::from(step.as_bytes()[0] - b'a');
        match &step[1..] {
            "" => rate.handle_ask(id),
            "!" => rate.handle_start(id),
            "." => rate.handle_end(id),
            "-" => rate.handle_withdraw(id),
            "," => {
                rate.handle_end(id);
                rate.handle_ask(id);
            }
            other => panic!("{other}"),
        }
        let granted: String = std::iter::from_fn(|| rate.poll_grant()).map(|id| char::from(b'a' + id as u8)).collect();
        if !granted.is_empty() {
            out.push(format!("{step}>{granted}"));
        }
    }
    out.join(" ")
}

#[test]
fn an_instance_runs_when_its_resources_are_free() {
    let two = ["1 r:1", "1 r:1"];
    assert_eq!(script(&two, "a a! b a. b! b."), "a>a a.>b");
    assert_eq!(script(&two, "a b a-"), "a>a a->b", "what was granted is given back unused");
    assert_eq!(script(&two, "a a! b b- a. a"), "a>a a>a", "who gave up is not granted anything");
    assert_eq!(script(&two, "a a a! a a. a-"), "a>a", "an ask while it runs is none");
    assert_eq!(script(&["1 r:2 s:1", "1 r:1", "1 s:1"], "b b! a c b. c! c."), "b>b b.>a");
    assert_eq!(script(&["1", "1", "1 r:0"], "a b c"), "a>a b>b c>c", "who needs nothing never waits");
}

#[test]
fn who_waits_is_passed_only_by_those_who_want_nothing_that_it_wants() {
    // a needs both; c may not take s from under it, d may take t.
    let demands = ["1 r:1 s:1", "1 r:1", "1 s:1", "1 t:1"];
    assert_eq!(script(&demands, "b b! a c d b. a! a."), "b>b d>d b.>a a.>c");
}

#[test]
fn of_two_that_want_the_same_one_with_priority_2_runs_half_as_often() {
    let runs = |demands: &[&str], count: usize| {
        let mut rate = rate(demands);
        (0..demands.len()).for_each(|id| rate.handle_ask(id));
        let mut runs = vec![0; demands.len()];
        for _ in 0..count {
            let id = rate.poll_grant().unwrap();
            assert_eq!(rate.poll_grant(), None, "there is one");
            rate.handle_start(id);
            runs[id] += 1;
            rate.handle_end(id);
            rate.handle_ask(id);
        }
        runs
    };
    assert_eq!(runs(&["1 r:1", "2 r:1"], 300), [200, 100]);
    assert_eq!(runs(&["0 r:1", "1 r:1"], 300), [150, 150]);
    assert_eq!(runs(&["1 r:1", "2 r:1", "4 r:1"], 700), [400, 200, 100]);
}

#[test]
fn an_instance_that_was_idle_does_not_catch_up() {
    let mut rate = rate(&["1 r:1", "1 r:1"]);
    let mut run = |ids: &[usize]| {
        ids.iter().for_each(|id| rate.handle_ask(*id));
        let id = rate.poll_grant().unwrap();
        rate.handle_start(id);
        rate.handle_end(id);
        id
    };
    (0..1_000).for_each(|_| assert_eq!(run(&[0]), 0));
    let ids: Vec<_> = (0..20).map(|_| run(&[0, 1])).collect();
    assert!((9..=11).contains(&ids.iter().filter(|id| **id == 1).count()), "{ids:?}");
}

/// A small generator (xorshift), so that a seed is a schedule.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Instances that ask, run and give up at random; who was granted what is counted here anew.
struct World {
    rate: Rate,
    demands: Vec<Demand>,
    limits: BTreeMap<String, u64>,
    /// Steps until the run of each that runs ends.
    running: BTreeMap<usize, u64>,
    /// For each that waits, how often each other has begun since.
    passed: BTreeMap<usize, Vec<u64>>,
    starts: u64,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let names = ["r", "s", "t"];
        let mut demands = Vec::new();
        for _ in 0..2 + random.below(6) {
            let some = names.iter().filter(|_| random.below(2) == 0).copied().collect::<Vec<_>>();
            let needs = some.iter().map(|name| Need {
                name: (*name).to_owned(),
                is_global: *name == "t",
                count: random.below(5),
            });
            let needs = needs.collect();
            demands.push(Demand { device: 0, priority: random.below(4) as u32, needs });
        }
        let mut limits: BTreeMap<String, u64> = BTreeMap::new();
        for need in demands.iter().flat_map(|demand| &demand.needs) {
            let most = limits.entry(need.name.clone()).or_default();
            *most = (*most).max(need.count);
        }
        let mut pools = pools("");
        pools.register(&demands).unwrap();
        Self { rate: pools.into_rate(), demands, limits, running: BTreeMap::new(), passed: BTreeMap::new(), starts: 0 }
    }

    fn step(&mut self, random: &mut Random) {
        self.running.values_mut().for_each(|left| *left -= 1);
        let ended: Vec<_> = self.running.iter().filter(|(_, left)| **left == 0).map(|(id, _)| *id).collect();
        for id in ended {
            self.running.remove(&id);
            self.rate.handle_end(id);
            if random.below(4) > 0 {
                self.ask(id);
            }
        }
        let id = random.below(self.demands.len() as u64) as usize;
        match random.below(8) {
            0 if self.passed.remove(&id).is_some() => self.rate.handle_withdraw(id),
            0..=3 if !self.running.contains_key(&id) => self.ask(id),
            _ => {}
        }
        while let Some(id) = self.rate.poll_grant() {
            self.start(id, 1 + random.below(5));
        }
        self.check();
    }

    fn ask(&mut self, id: usize) {
        self.rate.handle_ask(id);
        self.passed.entry(id).or_insert_with(|| vec![0; self.demands.len()]);
    }

    fn start(&mut self, id: usize, steps: u64) {
        assert!(self.rate.is_granted(id) && !self.running.contains_key(&id));
        assert!(self.passed.remove(&id).is_some(), "{id} did not ask");
        self.rate.handle_start(id);
        self.running.insert(id, steps);
        self.starts += 1;
        self.passed.values_mut().for_each(|passed| passed[id] += 1);
    }

    fn needs(&self, id: usize) -> impl Iterator<Item = &Need> {
        self.demands[id].needs.iter().filter(|need| need.count > 0)
    }

    fn check(&self) {
        let mut taken: BTreeMap<&str, u64> = BTreeMap::new();
        for need in self.running.keys().flat_map(|id| self.needs(*id)) {
            *taken.entry(&need.name).or_default() += need.count;
        }
        for (name, taken) in &taken {
            assert!(*taken <= self.limits[*name], "{taken} of {name} are taken");
        }
        let priority = |id: usize| u64::from(self.demands[id].priority.max(1));
        for (id, passed) in &self.passed {
            assert!(self.rate.is_waiting(*id));
            let is_short = self.needs(*id).any(|need| taken.get(&*need.name).copied().unwrap_or(0) > 0);
            let is_behind = self.passed.keys().filter(|other| *other != id).any(|other| self.share(*id, *other));
            assert!(is_short || is_behind, "{id} waits for nothing");
            for (other, count) in passed.iter().enumerate().filter(|(other, _)| self.share(*id, *other)) {
                // It began at most one pass of its own ahead; the other may have lagged by one run.
                let most = priority(*id) / priority(other) + 2;
                assert!(*count <= most, "{id} was passed {count} times by {other}");
            }
        }
        let is_anybody_waiting = !self.passed.is_empty();
        assert!(!is_anybody_waiting || !self.running.is_empty(), "all wait, and nobody runs");
    }

    fn share(&self, one: usize, other: usize) -> bool {
        self.needs(one).any(|need| self.needs(other).any(|theirs| theirs.name == need.name))
    }
}

#[test]
fn nothing_is_overcommitted_and_nobody_starves_in_any_schedule() {
    let (mut starts, mut waits) = (0, 0);
    for seed in 1..=5_000 {
        let mut random = Random(seed);
        let mut world = World::new(&mut random);
        for _ in 0..120 {
            world.step(&mut random);
            waits += world.passed.len();
        }
        starts += world.starts;
    }
    // What never happens is not tested.
    assert!(starts > 100_000 && waits > 100_000, "{starts} starts, {waits} waits");
}
