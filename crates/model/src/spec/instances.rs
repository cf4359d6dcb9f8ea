//! The instances of a model version one by one, and the update from those that it has to those of changed instance
//! groups: Triton's `TritonModel::PrepareInstances` (`backend_model.cc`).

use std::collections::BTreeSet;

use crate::spec::InstanceGroup;

/// One instance of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceSeat {
    /// Its name, which no other instance of the model version has.
    pub name: String,
    /// Its group.
    pub group: InstanceGroup,
    /// Its GPU, if it is on one.
    pub gpu: Option<u32>,
}

impl InstanceSeat {
    /// Returns true if an instance in one seat is as good as one in the other. As in Triton
    /// (`EquivalentInInstanceConfig`) names and counts do not matter.
    pub fn is_like(&self, other: &Self) -> bool {
        let rest = |seat: &Self| InstanceGroup {
            name: String::new(),
            count: 0,
            gpus: seat.gpu.into_iter().collect(),
            ..seat.group.clone()
        };
        rest(self) == rest(other)
    }

    /// Returns the seat under a name that is not taken.
    fn with_free_name(self, taken: &BTreeSet<&str>) -> Self {
        if !taken.contains(self.name.as_str()) {
            return self;
        }
        let gpu = self.gpu.filter(|_| self.group.gpus.len() > 1).map_or(String::new(), |gpu| format!("_gpu{gpu}"));
        let mut names = (0_u32..).map(|index| format!("{}_{index}{gpu}", self.group.name));
        let name = names.find(|name| !taken.contains(name.as_str())).unwrap_or_default();
        Self { name, ..self }
    }
}

/// An instance that a model version has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownInstance {
    /// Its index in the model's queue.
    pub index: usize,
    /// Its seat.
    pub seat: InstanceSeat,
    /// True if an earlier update removed it, and sequences go on in it.
    pub is_leaving: bool,
}

/// An update of instances. Groups are given by their indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceUpdate {
    /// The indices of the instances that stay, each with its group.
    pub kept: Vec<(usize, usize)>,
    /// The instances to make, each with its group.
    pub added: Vec<(InstanceSeat, usize)>,
    /// The indices of the instances that leave.
    pub removed: Vec<usize>,
}

impl InstanceUpdate {
    /// Plans the update of instances to these groups. An instance stays in a seat of its name, else in one that is like
    /// its own; one that is leaving stays rather than that another is made.
    pub fn new(known: &[KnownInstance], groups: &[InstanceGroup]) -> Self {
        let mut left: Vec<&KnownInstance> = known.iter().collect();
        left.sort_by_key(|instance| (instance.is_leaving, instance.index));
        let mut update = Self::default();
        let wanted = groups.iter().enumerate().flat_map(|(index, group)| group.seats().map(move |seat| (seat, index)));
        let mut unnamed = Vec::new();
        for (seat, group) in wanted {
            match left.iter().position(|have| have.seat.name == seat.name && have.seat.is_like(&seat)) {
                Some(at) => update.kept.push((left.remove(at).index, group)),
                None => unnamed.push((seat, group)),
            }
        }
        let mut missing = Vec::new();
        for (seat, group) in unnamed {
            match left.iter().position(|have| have.seat.is_like(&seat)) {
                Some(at) => update.kept.push((left.remove(at).index, group)),
                None => missing.push((seat, group)),
            }
        }
        for (seat, group) in missing {
            let names = known.iter().map(|instance| instance.seat.name.as_str());
            let taken = names.chain(update.added.iter().map(|(seat, _)| seat.name.as_str())).collect();
            let seat = seat.with_free_name(&taken);
            update.added.push((seat, group));
        }
        update.removed = left.iter().filter(|instance| !instance.is_leaving).map(|instance| instance.index).collect();
        update
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::InstanceKind;

    /// Groups such as `a 2; b 1 on 0,1; c 1 far`: name, count, GPUs and host policy.
    fn groups(text: &str) -> Vec<InstanceGroup> {
        let group = |text: &str| {
            let mut words = text.split_whitespace();
            let (name, count) = (words.next().unwrap().to_owned(), words.next().unwrap().parse().unwrap());
            let mut group = InstanceGroup {
                name,
                kind: InstanceKind::Cpu,
                count,
                gpus: Vec::new(),
                is_passive: false,
                profiles: Vec::new(),
                host_policy: "cpu".to_owned(),
                rate: Default::default(),
            };
            match words.next() {
                Some("on") => {
                    group.gpus = words.next().unwrap().split(',').map(|gpu| gpu.parse().unwrap()).collect();
                    group.kind = InstanceKind::Gpu;
                }
                Some(policy) => policy.clone_into(&mut group.host_policy),
                None => {}
            }
            group
        };
        text.split(';').map(group).collect()
    }

    /// The instances of groups, the indices in their order; those of these names are leaving.
    fn known(text: &str, leaving: &[&str]) -> Vec<KnownInstance> {
        let seats = groups(text).into_iter().flat_map(|group| group.seats().collect::<Vec<_>>());
        let known = |(index, seat): (usize, InstanceSeat)| {
            let is_leaving = leaving.contains(&seat.name.as_str());
            KnownInstance { index, seat, is_leaving }
        };
        seats.enumerate().map(known).collect()
    }

    #[test]
    fn instances_stay_where_a_group_has_a_seat_like_theirs() {
        let check = |have: &str, leaving: &[&str], to: &str, want: &str| {
            let known = known(have, leaving);
            let InstanceUpdate { kept, added, removed } = InstanceUpdate::new(&known, &groups(to));
            let name = |index: &usize| known[*index].seat.name.as_str();
            let mut words: Vec<_> = kept.iter().map(|(index, group)| format!("{}@{group}", name(index))).collect();
            words.extend(added.iter().map(|(seat, group)| format!("+{}@{group}", seat.name)));
            words.extend(removed.iter().map(|index| format!("-{}", name(index))));
            assert_eq!(words.join(" "), want, "{have} to {to}");
        };
        check("m_0 1", &[], "m_0 3", "m_0_0@0 +m_0_1@0 +m_0_2@0");
        check("m_0 3", &[], "m_0 1", "m_0_0@0 -m_0_1 -m_0_2");
        check("m_0 2", &[], "m_0 2", "m_0_0@0 m_0_1@0");
        check("a 2", &[], "b 2", "a_0@0 a_1@0");
        check("a 2", &[], "b 3", "a_0@0 a_1@0 +b_2@0");
        check("a 1; b 1 far", &[], "b 1 far; a 2", "b_0@0 a_0@1 +a_1@1");
        check("m_0 2; m_1 1 far", &[], "m_0 1 far; m_1 2", "m_1_0@0 m_0_0@1 m_0_1@1");
        check("m_0 1; m_1 1 far", &[], "m_0 2 far", "m_1_0@0 +m_0_1@0 -m_0_0");
        check("m_0 1", &[], "m_0 1 far", "+m_0_1@0 -m_0_0");
        check("m_0 1 on 0", &[], "m_0 1 on 1", "+m_0_1@0 -m_0_0");
        check("m_0 1 on 0", &[], "m_0 1 on 0,1", "m_0_0@0 +m_0_0_gpu1@0");
        check("m_0 1 on 0,1", &[], "m_0 2 on 0,1", "m_0_0_gpu0@0 m_0_0_gpu1@0 +m_0_1_gpu0@0 +m_0_1_gpu1@0");
        check("m_0 1 on 0", &[], "m_0 1", "+m_0_1@0 -m_0_0");
        check("m_0 3", &["m_0_1", "m_0_2"], "m_0 2", "m_0_0@0 m_0_1@0");
        check("m_0 3", &["m_0_1", "m_0_2"], "m_0 1", "m_0_0@0");
        check("m_0 3", &["m_0_0"], "m_0 2", "m_0_0@0 m_0_1@0 -m_0_2");
        check("m_0 2", &["m_0_1"], "m_0 2 far", "+m_0_2@0 +m_0_3@0 -m_0_0");
    }
}
