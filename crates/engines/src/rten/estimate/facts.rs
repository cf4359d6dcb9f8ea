//! The known facts about a tensor before the run that makes it: its sizes and, if it is small, its
//! elements, each between two bounds. A bound may be loose and is never wrong, so that a size found
//! from it is at least what the engine asks for.

use smallvec::SmallVec;

/// A number between two, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// Sizes of a tensor.
pub(super) type Sizes = SmallVec<[Interval; 6]>;

/// The known facts about one tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorFacts {
    /// Its dimensions; `None` if not even the rank is known.
    pub(super) sizes: Option<Sizes>,
    /// The maximum number of its elements, which may be fewer than the sizes allow.
    pub(super) count_max: f64,
    /// Its elements, row major, if they are known and few.
    pub(super) elements: Option<Vec<Interval>>,
    /// True if its elements are of an integer datatype.
    pub(super) is_whole: bool,
}

/// Elements that are followed: no tensor that sets sizes has more.
pub(super) const ELEMENTS_MAX: usize = 64;

/// The engine holds whole numbers in 32 bits, and wraps.
const WRAPPED: Interval = Interval { low: i32::MIN as f64, high: i32::MAX as f64 };

impl Interval {
    pub(super) const ANY: Self = Self { low: f64::NEG_INFINITY, high: f64::INFINITY };
    pub(super) const TRUTH: Self = Self { low: 0.0, high: 1.0 };
    pub(super) const ONE: Self = Self { low: 1.0, high: 1.0 };

    pub(super) const fn new(low: f64, high: f64) -> Self {
        if low.is_nan() || high.is_nan() { Self::ANY } else { Self { low, high } }
    }

    pub(super) const fn exact(value: f64) -> Self {
        Self::new(value, value)
    }

    pub(super) const fn truth(value: bool) -> Self {
        if value { Self::ONE } else { Self::exact(0.0) }
    }

    /// Anything up to a bound.
    pub(super) const fn up_to(high: f64) -> Self {
        Self::new(0.0, high)
    }

    /// The number, if there is only one.
    pub(super) fn value(self) -> Option<f64> {
        (self.low == self.high).then_some(self.low)
    }

    pub(super) fn is(self, value: f64) -> bool {
        self.value() == Some(value)
    }

    pub(super) const fn contains(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// As a dimension: whole and not negative.
    pub(super) const fn as_size(self) -> Self {
        Self::new(self.low.max(0.0).floor(), self.high.max(0.0).floor())
    }

    pub(super) const fn join(self, other: Self) -> Self {
        Self::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// Through a function that never decreases.
    pub(super) fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self::new(function(self.low), function(self.high))
    }

    /// Both through a function whose extremes lie at the ends.
    pub(super) fn corners(self, other: Self, function: impl Fn(f64, f64) -> f64) -> Self {
        let ends = [(self.low, other.low), (self.low, other.high), (self.high, other.low), (self.high, other.high)];
        let ends = ends.map(|(one, two)| Self::exact(function(one, two)));
        ends.into_iter().reduce(Self::join).unwrap_or(Self::ANY)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self::new(self.low + other.low, self.high + other.high)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self::new(self.low - other.high, self.high - other.low)
    }

    pub(super) fn times(self, other: Self) -> Self {
        self.corners(other, product)
    }

    /// A quotient of any sign, not rounded.
    pub(super) fn over(self, other: Self) -> Self {
        if other.contains(0.0) { Self::ANY } else { self.corners(other, |one, two| one / two) }
    }

    pub(super) const fn min(self, other: Self) -> Self {
        Self::new(self.low.min(other.low), self.high.min(other.high))
    }

    pub(super) const fn max(self, other: Self) -> Self {
        Self::new(self.low.max(other.low), self.high.max(other.high))
    }

    /// As the result of arithmetic in the engine: beyond 32 bits it may be anything there.
    pub(super) fn wrapped(self) -> Self {
        if self.low >= WRAPPED.low && self.high <= WRAPPED.high { self } else { self.join(WRAPPED) }
    }
}

/// A product in which zero times anything is zero.
pub(super) fn product(one: f64, two: f64) -> f64 {
    if one == 0.0 || two == 0.0 { 0.0 } else { one * two }
}

/// Elements of a tensor of these sizes.
pub(super) fn count(sizes: &[Interval]) -> Interval {
    sizes.iter().fold(Interval::ONE, |count, size| count.times(*size))
}

impl TensorFacts {
    /// A tensor of these sizes, with no other known facts.
    pub(super) fn of(sizes: Sizes) -> Self {
        let count_max = count(&sizes).high;
        Self { sizes: Some(sizes), count_max, elements: None, is_whole: false }
    }

    /// A tensor of any rank.
    pub(super) const fn unranked(count_max: f64) -> Self {
        Self { sizes: None, count_max, elements: None, is_whole: false }
    }

    /// A list of whole numbers, or one without a dimension.
    pub(super) fn whole(elements: Vec<Interval>, is_scalar: bool) -> Self {
        let length = Interval::exact(elements.len() as f64);
        let sizes = if is_scalar { Sizes::new() } else { Sizes::from_slice(&[length]) };
        Self { is_whole: true, ..Self::of(sizes).with(Some(elements)) }
    }

    /// The tensor with these elements, if they are as many as it has, and not too many to follow.
    pub(super) fn with(self, elements: Option<Vec<Interval>>) -> Self {
        let elements = elements.filter(|elements| self.exact_count() == Some(elements.len()));
        Self { elements, ..self }
    }

    /// Of the datatype of another.
    pub(super) fn like(self, other: &Self) -> Self {
        Self { is_whole: other.is_whole, ..self }
    }

    /// The tensor with at most this many elements.
    pub(super) fn at_most(self, count_max: f64) -> Self {
        Self { count_max: self.count_max.min(count_max), ..self }
    }

    pub(super) fn rank(&self) -> Option<usize> {
        self.sizes.as_ref().map(|sizes| sizes.len())
    }

    /// The number of its elements, if that is known, and few enough to follow.
    pub(super) fn exact_count(&self) -> Option<usize> {
        let count = count(self.sizes.as_ref()?).value()?;
        (count <= ELEMENTS_MAX as f64).then_some(count as usize)
    }

    /// Its elements, any value for unknown ones; `None` if it is not known to have few.
    pub(super) fn known_elements(&self) -> Option<Vec<Interval>> {
        let of_anything = || self.exact_count().map(|count| vec![Interval::ANY; count]);
        self.elements.clone().or_else(of_anything)
    }

    /// Its only element; any value if it has others or is not known.
    pub(super) fn single(&self) -> Interval {
        match self.elements.as_deref() {
            Some([element]) => *element,
            _ => Interval::ANY,
        }
    }

    /// The facts that hold for both.
    pub(super) fn join(&self, other: &Self) -> Self {
        let sizes = match (&self.sizes, &other.sizes) {
            (Some(one), Some(two)) if one.len() == two.len() => {
                Some(one.iter().zip(two).map(|(one, two)| one.join(*two)).collect())
            }
            _ => None,
        };
        let elements = match (&self.elements, &other.elements) {
            (Some(one), Some(two)) if one.len() == two.len() && self.sizes == other.sizes => {
                Some(one.iter().zip(two).map(|(one, two)| one.join(*two)).collect())
            }
            _ => None,
        };
        let count_max = self.count_max.max(other.count_max);
        Self { sizes, count_max, elements, is_whole: self.is_whole && other.is_whole }
    }
}
