//! Cases of the top-k kernels: every strategy, datatype and arrangement of values.

use deuteron::backend::kernel::BufferRole;
use deuteron::backend::kernel::topk::{TopK, TopKIndex, TopKStrategy};
use deuteron::tensor::{Datatype, topk};

use super::case::{After, Case, Random};

/// Runs `$body` with `$number` the type of a datatype's elements.
macro_rules! with_number {
    ($datatype:expr, $number:ident => $body:expr) => {
        match $datatype {
            Datatype::Uint32 => {
                type $number = u32;
                $body
            }
            Datatype::Int32 => {
                type $number = i32;
                $body
            }
            Datatype::Fp32 => {
                type $number = f32;
                $body
            }
            _ => unreachable!("no top-k of it"),
        }
    };
}

/// Kind of values in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any bits: of floats all kinds of NaN, subnormal numbers, both infinities.
    Bits,
    /// As a classifier's: a normal distribution.
    Usual,
    /// Few different values, the special ones among them: ties everywhere.
    Ties,
    /// All the same.
    Equal,
    /// Each larger than the one before, as far as the datatype shows it: the worst order.
    Rising,
    /// The best one first.
    Falling,
    /// All NaN; for integers, all the least.
    Least,
    /// The best ones at the positions of one lane.
    Striped,
    /// The best ones at the edges of segments, and of the parts that a block reads at a time.
    Edges,
}

const ALL_VALUES: [Values; 9] = [
    Values::Bits,
    Values::Usual,
    Values::Ties,
    Values::Equal,
    Values::Rising,
    Values::Falling,
    Values::Least,
    Values::Striped,
    Values::Edges,
];

/// A number of a datatype that is near another.
trait Near: Sized {
    fn near(value: f64) -> Self;
    const SPECIAL: [Self; 6];
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Near for $integer {
            fn near(value: f64) -> Self {
                value as Self
            }
            const SPECIAL: [Self; 6] = [<$integer>::MIN, <$integer>::MAX, 0, 1, <$integer>::MAX - 1, <$integer>::MIN + 1];
        }
    )*};
}

integers!(i32 u32);

macro_rules! floats {
    ($($float:ident, $near:expr, $special:expr;)*) => {$(
        impl Near for $float {
            fn near(value: f64) -> Self {
                $near(value)
            }
            const SPECIAL: [Self; 6] = $special;
        }
    )*};
}

floats! {
    f32, |value: f64| value as f32, [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0];
}

fn row<T: Near + Copy>(values: Values, classes: usize, segments: usize, random: &mut Random) -> Vec<T> {
    let segment = classes.div_ceil(segments);
    let is_edge = |index: usize| {
        [segment, 8192, classes].iter().any(|size| index.is_multiple_of(*size) || (index + 1).is_multiple_of(*size))
    };
    let chosen = T::SPECIAL[random.below(6)];
    (0..classes)
        .map(|index| match values {
            Values::Bits => unreachable!("any bits are made as bytes"),
            Values::Usual => T::near((random.below(2000) as f64 + random.below(2000) as f64) / 32.0),
            Values::Ties => T::SPECIAL[random.below(6)],
            Values::Equal => chosen,
            Values::Rising => T::near(index as f64 / 8.0),
            Values::Falling => T::near((classes - index) as f64 / 8.0),
            Values::Least => T::SPECIAL[0],
            Values::Edges => T::near(if is_edge(index) { 120.0 } else { random.below(100) as f64 }),
            Values::Striped => T::near(if index % 128 < 4 { 100.0 + (index % 91) as f64 } else { 1.0 }),
        })
        .collect()
}

/// One case; `multiprocessors` decides the strategy.
pub fn case(request: TopK, values: Values, multiprocessors: u32, random: &mut Random) -> Case {
    let TopK { datatype, rows, classes, count, .. } = request;
    let plan = request.plan(multiprocessors).expect("the shape is planned");
    let segments = match request.strategy(multiprocessors) {
        TopKStrategy::Split(segments) => segments as usize,
        TopKStrategy::Block | TopKStrategy::Warp => 1,
    };
    let label = format!(
        "top {count} of {rows} x {classes} {}, {values:?}, {:?} by {:?}",
        datatype.name(),
        request.index,
        request.strategy(multiprocessors)
    );
    with_number!(datatype, Number => {
        let contents = match values {
            Values::Bits => random.bytes(rows * classes * size_of::<Number>()),
            _ => (0..rows).flat_map(|_| row::<Number>(values, classes, segments, random)).flat_map(Number::to_le_bytes).collect(),
        };
        let numbers: Vec<Number> =
            contents.chunks(size_of::<Number>()).map(bytemuck::pod_read_unaligned).collect();
        let (mut best, mut indices) = (Vec::new(), Vec::new());
        for row in numbers.chunks(classes) {
            for index in topk::best(row, count) {
                best.extend(row[index as usize].to_le_bytes());
                match request.index {
                    TopKIndex::I64 => indices.extend(i64::from(index).to_le_bytes()),
                    TopKIndex::U32 => indices.extend(index.to_le_bytes()),
                }
            }
        }
        let case = Case::new(label, plan).reads(BufferRole::Input, contents).writes(BufferRole::Indices, After::Bytes(indices));
        if request.has_values { case.writes(BufferRole::Output, After::Bytes(best)) } else { case }
    })
}

const NUMBERS: [Datatype; 3] = [Datatype::Uint32, Datatype::Int32, Datatype::Fp32];

/// Rows, classes, count, multiprocessors, and the strategy that these must give.
const SHAPES: [(usize, usize, usize, u32, TopKStrategy); 19] = [
    (1, 1, 1, 1, TopKStrategy::Warp),
    (3, 2, 1, 1, TopKStrategy::Warp),
    (5, 7, 7, 1, TopKStrategy::Warp),
    (9, 10, 3, 1, TopKStrategy::Warp),
    (6, 33, 32, 1, TopKStrategy::Warp),
    (4, 127, 20, 1, TopKStrategy::Warp),
    (3, 1000, 5, 132, TopKStrategy::Warp),
    (3, 1001, 1, 132, TopKStrategy::Warp),
    (2, 1024, 32, 132, TopKStrategy::Warp),
    (17, 4093, 5, 1, TopKStrategy::Warp),
    (2, 50, 40, 132, TopKStrategy::Block),
    (1, 34, 33, 132, TopKStrategy::Block),
    (2, 1025, 5, 132, TopKStrategy::Block),
    (2, 2049, 64, 132, TopKStrategy::Block),
    (1, 1500, 1024, 132, TopKStrategy::Block),
    (16, 20_001, 8, 1, TopKStrategy::Block),
    (1, 16_384, 5, 132, TopKStrategy::Split(2)),
    (2, 33_333, 40, 132, TopKStrategy::Split(4)),
    (1, 34_000, 1024, 132, TopKStrategy::Split(2)),
];

/// The whole grid.
pub fn cases() -> impl Iterator<Item = Case> {
    let mut random = Random(11);
    let mut turn = 0_usize;
    NUMBERS.into_iter().flat_map(|datatype| SHAPES.into_iter().map(move |shape| (datatype, shape))).flat_map(
        move |(datatype, (rows, classes, count, multiprocessors, strategy))| {
            // Large shapes take the arrangements in turns, so that all come over the datatypes.
            let step = if rows * classes > 20_000 { 4 } else { 1 };
            turn += 1;
            let request = |index, has_values| TopK { datatype, rows, classes, count, has_values, index };
            assert_eq!(request(TopKIndex::U32, true).strategy(multiprocessors), strategy, "{rows} x {classes}");
            let mut cases: Vec<Case> = ALL_VALUES
                .into_iter()
                .enumerate()
                .filter(|(place, _)| (place + turn).is_multiple_of(step))
                .map(|(place, values)| {
                    let index = if place % 2 == 0 { TopKIndex::U32 } else { TopKIndex::I64 };
                    case(request(index, true), values, multiprocessors, &mut random)
                })
                .collect();
            // The form that `argmax` uses.
            cases.push(case(request(TopKIndex::I64, false), Values::Ties, multiprocessors, &mut random));
            cases
        },
    )
}

/// The largest row, a few times: by one block, and by many.
pub fn large() -> Vec<Case> {
    let mut random = Random(12);
    let shape = |datatype, count| TopK {
        datatype,
        rows: 1,
        classes: 1_000_000,
        count,
        has_values: true,
        index: TopKIndex::U32,
    };
    vec![
        case(shape(Datatype::Fp32, 5), Values::Bits, 132, &mut random),
        case(shape(Datatype::Fp32, 5), Values::Rising, 1, &mut random),
        case(shape(Datatype::Fp32, 300), Values::Edges, 132, &mut random),
        case(shape(Datatype::Uint32, 1024), Values::Bits, 16, &mut random),
        case(shape(Datatype::Int32, 1000), Values::Rising, 132, &mut random),
    ]
}
