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

fn empty(supplies: &str) -> Rate {
    Rate::new(supplies.split_whitespace().map(supply).collect())
}

fn rate(demands: &[&str]) -> Rate {
    let mut rate = empty("");
    let demands: Vec<_> = demands.iter().map(|text| demand(text)).collect();
    rate.register(&demands).unwrap();
    rate
}

/// The amount of each resource, as the example of Triton's documents shows it.
fn limits(supplies: &str, models: &[&str]) -> Result<String, String> {
    let mut rate = empty(supplies);
    for model in models {
        rate.register(&[demand(model)]).map_err(|error| error.to_string())?;
    }
    Ok(limits_text(&rate))
}

fn limits_text(rate: &Rate) -> String {
    let line = |((site, name), resource): &(ResourceKey, Resource)| match site {
        ResourceSite::Device(_) => format!("{name}: {}", resource.limit),
        ResourceSite::Global => format!("{name}: {} of all", resource.limit),
    };
    rate.resources.iter().map(line).collect::<Vec<_>>().join(", ")
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
    let mut rate = empty("r:2");
    assert_eq!(rate.register(&[demand("1 r:2"), demand("1 r:1")]), Ok(0..2));
    assert!(rate.register(&[demand("1 r:1"), demand("1 r:3")]).is_err());
    assert_eq!((rate.register(&[demand("1 r:1")]), rate.instances.len()), (Ok(2..3), 3));
}

/// Runs a script over models of one instance: `+a 1 r:4` registers one, `-a` unregisters it; other lines are as in
/// [`script`]. Returns the limits where they changed, and the instances granted after each step.
fn history(supplies: &str, lines: &[&str]) -> String {
    let mut rate = empty(supplies);
    let mut ids: BTreeMap<char, usize> = BTreeMap::new();
    let mut out = Vec::new();
    for line in lines {
        let before = limits_text(&rate);
        if let Some(line) = line.strip_prefix('+') {
            match rate.register(&[demand(&line[1..])]) {
                Ok(range) => drop(ids.insert(line.chars().next().unwrap(), range.start)),
                Err(error) => out.push(error.to_string()),
            }
        } else if let Some(name) = line.strip_prefix('-') {
            let id = ids.remove(&name.chars().next().unwrap()).unwrap();
            rate.unregister(id..id + 1);
        } else {
            for step in line.split_whitespace() {
                let granted = run_step(&mut rate, ids[&step.chars().next().unwrap()], &step[1..]);
                out.extend(named(&ids, granted).map(|names| format!("{step}>{names}")));
            }
        }
        if limits_text(&rate) != before {
            out.push(format!("[{}]", limits_text(&rate)));
        }
        let granted = std::iter::from_fn(|| rate.poll_grant()).collect();
        out.extend(named(&ids, granted).map(|names| format!("{line}>{names}")));
    }
    out.join(" ")
}

fn named(ids: &BTreeMap<char, usize>, granted: Vec<usize>) -> Option<String> {
    let name = |id: usize| ids.iter().find(|(_, have)| **have == id).map(|(name, _)| *name).unwrap();
    (!granted.is_empty()).then(|| granted.into_iter().map(name).collect())
}

/// One step of an instance; returns the instances granted by it.
fn run_step(rate: &mut Rate, id: usize, verb: &str) -> Vec<usize> {
    match verb {
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
    std::iter::from_fn(|| rate.poll_grant()).collect()
}

#[test]
fn a_model_that_comes_makes_more_of_a_resource_and_those_who_wait_run_by_that() {
    let got = history("", &["+a 1 r:1", "+b 1 r:1", "+c 1 r:1", "a a! b c", "+d 1 r:3", "a. b! b. c! c."]);
    assert_eq!(got, "[r: 1] a>a [r: 3] +d 1 r:3>bc");
    let got = history("r:2", &["+a 1 r:2", "+b 1 r:2", "a a! b", "+c 1 r:1 s:1", "+d 1 r:1", "a."]);
    let short = "Resource count for \"s\" is limited to 0 which will prevent scheduling of one or more model instances, \
                 the minimum required count is 1";
    assert_eq!(got, format!("[r: 2] a>a {short} a.>b"), "one that is refused changes nothing");
}

#[test]
fn a_model_that_goes_gives_back_what_it_held_and_the_default_shrinks_to_what_is_left() {
    // Running instances go on; no instance begins before enough of them have ended.
    let all = ["+a 1 r:4", "+b 1 r:1", "+c 1 r:1", "+d 1 r:2", "b b! c c! d d!", "-a"];
    let got = history("", &[&all[..], &["b b,", "c. d. b! b."]].concat());
    assert_eq!(got, "[r: 4] b>b c>c d>d [r: 2] d.>b");
    // It goes while it runs, while it may run and while it waits.
    let three = ["+a 1 r:1", "+b 1 r:1", "+c 1 r:1", "a a! b c"];
    assert_eq!(history("", &[&three[..], &["-a", "b! b."]].concat()), "[r: 1] a>a -a>b b.>c");
    assert_eq!(history("", &[&three[..], &["a.", "-b", "c! c."]].concat()), "[r: 1] a>a a.>b -b>c");
    assert_eq!(history("", &[&three[..], &["-b", "a.", "c! c."]].concat()), "[r: 1] a>a a.>c");
    // An instance that waited behind it for another resource is no longer held up.
    let two = ["+a 1 r:1", "+b 1 r:1 s:1", "+c 1 s:1", "a a! b c"];
    assert_eq!(history("", &[&two[..], &["-b"]].concat()), "[r: 1] [r: 1, s: 1] a>a -b>c");
    // A device's resource may become one of all devices once no instance has it as the first.
    let both = "Resource \"r\" is present as both global and device-specific resource in the model configuration.";
    let got = history("", &["+a 1 r:1", "+b 1 r:2:global", "-a", "+b 1 r:2:global"]);
    assert_eq!(got, format!("[r: 1] {both} [] [r: 2 of all]"));
    assert_eq!(history("r:9", &["+a 1 r:4", "+b 1 r:1", "-a"]), "[r: 9]", "what a flag says stays");
}

/// Runs a script: `a` asks, `a!` begins, `a.` ends, `a-` withdraws, `a,` ends and asks at once.
/// Returns the instances granted after each step.
fn script(demands: &[&str], steps: &str) -> String {
    let mut rate = rate(demands);
    let mut out = Vec::new();
    for step in steps.split_whitespace() {
        let granted = run_step(&mut rate, usize::from(step.as_bytes()[0] - b'a'), &step[1..]);
        let granted: String = granted.into_iter().map(|id| char::from(b'a' + id as u8)).collect();
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
    // The third begins 6 behind the first: with 8, of which two are its load.
    assert_eq!(runs(&["1 r:1", "2 r:1", "4 r:1"], 700), [401, 200, 99]);
}

/// The order of the runs of two instances that always have work and cannot run at the same time;
/// `a` asks first.
fn turns(demands: [&str; 2], count: usize) -> String {
    let mut rate = rate(&demands);
    let mut turns = String::new();
    (0..demands.len()).for_each(|id| rate.handle_ask(id));
    while turns.len() < count {
        let id = rate.poll_grant().unwrap();
        rate.handle_start(id);
        turns.push(char::from(b'a' + id as u8));
        rate.handle_end(id);
        rate.handle_ask(id);
    }
    turns
}

#[test]
fn the_runs_that_an_instance_took_to_load_count_as_in_triton() {
    // Executions times priority begin at 2 and 4. On a tie the one that has waited runs.
    assert_eq!(turns(["1 r:1", "2 r:1"], 12), "aabaabaabaab");
    assert_eq!(turns(["2 r:1", "1 r:1"], 12), "bbabbabbabba");
    assert_eq!(turns(["1 r:1", "1 r:1"], 6), "ababab");
    // NVIDIA's L0_rate_limiter: the clients of `a` stop all when 72 of theirs are answered. By then 35 of `b` are, and
    // 9 more are sent or under way: 80 to 44, where 1.8 is asked for.
    let turns = turns(["1 r:4", "2 r:2 s:2:global"], 120);
    let end = turns.match_indices('a').nth(71).unwrap().0;
    assert_eq!(turns[..end].matches('b').count(), 35);
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

/// Instances that register, unregister, ask, run and withdraw at random; grants are recounted here independently.
struct World {
    rate: Rate,
    /// Those that are registered.
    demands: BTreeMap<usize, Demand>,
    /// Steps until the run of each that runs ends.
    running: BTreeMap<usize, u64>,
    /// For each that waits, the number of times that each other has begun since.
    passed: BTreeMap<usize, BTreeMap<usize, u64>>,
    starts: u64,
    /// The most of each resource that may be taken: more than the limit if that shrank meanwhile.
    most: BTreeMap<String, u64>,
}

fn any_demand(random: &mut Random) -> Demand {
    let some: Vec<_> = ["r", "s", "t"].into_iter().filter(|_| random.below(2) == 0).collect();
    let needs =
        some.iter().map(|name| Need { name: (*name).to_owned(), is_global: *name == "t", count: random.below(5) });
    let needs = needs.collect();
    Demand { device: 0, priority: random.below(4) as u32, needs }
}

impl World {
    fn new(random: &mut Random) -> Self {
        let rate = empty("");
        let (demands, running, passed) = Default::default();
        let mut world = Self { rate, demands, running, passed, starts: 0, most: BTreeMap::new() };
        (0..2 + random.below(6)).for_each(|_| world.register(random));
        world
    }

    fn register(&mut self, random: &mut Random) {
        let demand = any_demand(random);
        let ids = self.rate.register(std::slice::from_ref(&demand)).unwrap();
        self.demands.insert(ids.start, demand);
    }

    fn unregister(&mut self, id: usize) {
        self.rate.unregister(id..id + 1);
        self.demands.remove(&id);
        self.running.remove(&id);
        self.passed.remove(&id);
        self.passed.values_mut().for_each(|passed| passed.retain(|other, _| *other != id));
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
        let index = random.below(self.demands.len() as u64) as usize;
        let id = *self.demands.keys().nth(index).unwrap();
        match random.below(32) {
            0 if self.demands.len() > 1 => self.unregister(id),
            1 if self.demands.len() < 8 => self.register(random),
            2..6 if self.passed.remove(&id).is_some() => self.rate.handle_withdraw(id),
            2..18 if !self.running.contains_key(&id) => self.ask(id),
            _ => {}
        }
        while let Some(id) = self.rate.poll_grant() {
            self.start(id, 1 + random.below(5));
        }
        self.check();
    }

    fn ask(&mut self, id: usize) {
        self.rate.handle_ask(id);
        self.passed.entry(id).or_default();
    }

    fn start(&mut self, id: usize, steps: u64) {
        assert!(self.rate.is_granted(id) && !self.running.contains_key(&id));
        assert!(self.passed.remove(&id).is_some(), "{id} did not ask");
        let (taken, limits) = (self.taken(), self.limits());
        for Need { name, count, .. } in self.needs(id) {
            let sum = taken.get(&**name).copied().unwrap_or(0) + count;
            assert!(sum <= limits[name], "{sum} of {name} are taken");
        }
        self.rate.handle_start(id);
        self.running.insert(id, steps);
        self.starts += 1;
        self.passed.values_mut().for_each(|passed| *passed.entry(id).or_default() += 1);
    }

    /// The largest need of one instance, for each resource.
    fn limits(&self) -> BTreeMap<String, u64> {
        let mut limits: BTreeMap<String, u64> = BTreeMap::new();
        for need in self.demands.values().flat_map(|demand| &demand.needs) {
            let most = limits.entry(need.name.clone()).or_default();
            *most = (*most).max(need.count);
        }
        limits
    }

    fn taken(&self) -> BTreeMap<String, u64> {
        let mut taken: BTreeMap<String, u64> = BTreeMap::new();
        for need in self.running.keys().flat_map(|id| self.needs(*id)) {
            *taken.entry(need.name.clone()).or_default() += need.count;
        }
        taken
    }

    fn needs(&self, id: usize) -> impl Iterator<Item = &Need> {
        self.demands[&id].needs.iter().filter(|need| need.count > 0)
    }

    fn check(&mut self) {
        let (taken, limits) = (self.taken(), self.limits());
        for (name, taken) in &taken {
            // Running instances go on after the limit shrank.
            let most = self.most.get(name).copied().unwrap_or(0).max(limits[name]);
            assert!(*taken <= most, "{taken} of {name} are taken");
        }
        self.most = taken.clone();
        let priority = |id: usize| u64::from(self.demands[&id].priority.max(1));
        for (id, passed) in &self.passed {
            assert!(self.rate.is_waiting(*id));
            let is_short = self.needs(*id).any(|need| taken.get(&need.name).copied().unwrap_or(0) > 0);
            let is_behind = self.passed.keys().filter(|other| *other != id).any(|other| self.share(*id, *other));
            assert!(is_short || is_behind, "{id} waits for nothing");
            for (other, count) in passed.iter().filter(|(other, _)| self.share(*id, **other)) {
                // It began at most one pass of its own ahead; the other may have lagged by one run.
                let most = priority(*id) / priority(*other) + 2;
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
fn nothing_is_overcommitted_and_nobody_starves_in_any_schedule_whoever_comes_and_goes() {
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
    // Without many starts and waits, nothing was tested.
    assert!(starts > 100_000 && waits > 100_000, "{starts} starts, {waits} waits");
}

#[test]
fn a_count_that_is_wrong_is_noticed_where_it_changes() {
    let check = |spoil: fn(&mut Rate), act: fn(&mut Rate), want: &str| {
        let mut rate = rate(&["1 r:1", "1 r:1"]);
        [0, 1].into_iter().for_each(|id| rate.handle_ask(id));
        assert_eq!(rate.poll_grant(), Some(0));
        spoil(&mut rate);
        let told = crate::tests::tripped(|| act(&mut rate));
        assert!(told.contains(want), "{told}, not {want}");
    };
    let give_back = |rate: &mut Rate| rate.handle_withdraw(0);
    check(|rate| rate.resources[0].1.taken = 0, give_back, "a run frees what it took");
    check(|rate| rate.resources[0].1.taken = 2, give_back, "belongs to granted and running instances");
    check(|rate| rate.waiting.clear(), |rate| rate.handle_withdraw(1), "a waiting instance is listed by its pass");
    check(|rate| rate.waiting.clear(), give_back, "each waiting instance is listed once");
    check(|rate| rate.registered = 0, give_back, "an id was given before");
}
