//! The two precisions of sums, and the functions from sums to answers in each, operation by
//! operation as in the libraries.

use model::trees::ScoreLink;

/// FP32 or FP64.
pub(super) trait Real: Copy + PartialOrd + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;

    /// Rounded.
    fn from_f64(value: f64) -> Self;
    /// Rounded.
    fn to_f32(self) -> f32;
    fn plus(self, other: Self) -> Self;
    /// The sum in FP64, rounded.
    fn plus_double(self, other: f64) -> Self;
    fn divided_by(self, other: Self) -> Self;
    /// Turns the sums of one target into answers.
    fn link(link: ScoreLink, scores: &mut [Self]);
}

macro_rules! real {
    ($real:ident, $sigmoid_bounded:expr) => {
        #[allow(clippy::cast_possible_truncation, reason = "rounding is what is meant")]
        #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one of both is")]
        impl Real for $real {
            const ZERO: Self = 0.0;

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_f32(self) -> f32 {
                self as f32
            }

            fn plus(self, other: Self) -> Self {
                self + other
            }

            fn plus_double(self, other: f64) -> Self {
                (f64::from(self) + other) as Self
            }

            fn divided_by(self, other: Self) -> Self {
                self / other
            }

            fn link(link: ScoreLink, scores: &mut [Self]) {
                let each = |function: &dyn Fn(Self) -> Self, scores: &mut [Self]| {
                    scores.iter_mut().for_each(|score| *score = function(*score));
                };
                match link {
                    ScoreLink::Identity => {}
                    ScoreLink::Exponential => each(&Self::exp, scores),
                    ScoreLink::ExponentialDouble => each(&|x| f64::from(x).exp() as Self, scores),
                    ScoreLink::ExponentialRatio(ratio) => each(&|x| (-x / ratio as Self).exp2(), scores),
                    ScoreLink::Hinge => each(&|x| if x > 0.0 { 1.0 } else { 0.0 }, scores),
                    ScoreLink::LogOnePlusExp => each(&|x| x.exp().ln_1p(), scores),
                    ScoreLink::OneVersusAll(alpha) | ScoreLink::Sigmoid(alpha) => {
                        each(&|x| 1.0 / (1.0 + (-(alpha as Self) * x).exp()), scores);
                    }
                    ScoreLink::SigmoidBounded => each(&$sigmoid_bounded, scores),
                    ScoreLink::SignedSquare => each(&|x| (x * x).copysign(x), scores),
                    ScoreLink::Softmax => softmax(scores),
                    ScoreLink::SoftmaxDouble => softmax_double(scores),
                }

                /// As in Treelite, which keeps the largest and each power in FP32, and their sum in FP64.
                fn softmax(scores: &mut [$real]) {
                    let largest = scores.iter().fold(f32::NEG_INFINITY, |most, score| most.max(*score as f32));
                    let mut sum = 0.0_f64;
                    for score in &mut *scores {
                        let power = (*score - largest as $real).exp() as f32;
                        sum += f64::from(power);
                        *score = power as $real;
                    }
                    scores.iter_mut().for_each(|score| *score /= (sum as f32) as $real);
                }

                fn softmax_double(scores: &mut [$real]) {
                    let largest = scores.iter().copied().fold($real::NEG_INFINITY, $real::max);
                    let mut sum = 0.0;
                    for score in &mut *scores {
                        *score = (*score - largest).exp();
                        sum += *score;
                    }
                    scores.iter_mut().for_each(|score| *score /= sum);
                }
            }
        }
    };
}

// `Sigmoid` of XGBoost.
real!(f32, |x: f32| 1.0 / ((-x).min(88.7).exp() + 1.0));
real!(f64, |x: f64| 1.0 / ((-x).min(88.7).exp() + 1.0));
