//! Cases of the pointwise kernels and of softmax.

use deuteron::backend::kernel::BufferRole;
use deuteron::backend::kernel::pointwise::{
    Activation, Binary, PointwiseOperation, Strides, activate, activation_plan, softmax, softmax_plan,
};

use super::case::{After, Case, Float, Random};

/// Tolerance beside the rounding to the format: a GPU's exponential and the twin's differ by some units of the last
/// place, and so do sums in another order.
const TOLERANCE: f32 = 2e-6;

fn after(float: Float, values: Vec<f32>) -> After {
    After::Floats(float, values, TOLERANCE + 2.0 * float.rounding())
}

fn activation_case(float: Float, activation: Activation, count: usize, random: &mut Random) -> Case {
    let input = float.bytes(&random.values(count));
    let mut values = float.values(&input);
    activate(&mut values, activation);
    let plan = activation_plan(count, activation, float.datatype()).expect("floats are planned");
    Case::new(format!("{activation:?} of {count} {float:?}"), plan)
        .reads(BufferRole::Input, input)
        .writes(BufferRole::Output, after(float, values))
}

fn binary_case(float: Float, binary: Binary, random: &mut Random) -> Case {
    let mut operand = |strides: Strides| {
        let last = (binary.rows - 1) * strides.row + (binary.columns - 1) * strides.column;
        float.bytes(&random.values(last as usize + 1))
    };
    let (left, right) = (operand(binary.left), operand(binary.right));
    let mut values = vec![0.0; (binary.rows * binary.columns) as usize];
    let fits = binary.combine(&float.values(&left), &float.values(&right), &mut values);
    assert!(fits.is_some());
    Case::new(format!("{binary:?} of {float:?}"), binary.plan(float.datatype()).expect("floats are planned"))
        .reads(BufferRole::Input, left)
        .reads(BufferRole::Right, right)
        .writes(BufferRole::Output, after(float, values))
}

fn softmax_case(float: Float, rows: u32, columns: u32, random: &mut Random) -> Case {
    let mut numbers = random.values((rows * columns) as usize);
    // Special values make a row NaN, or all of it 0, so most rows have none of them.
    let is_plain = |number: &f32| number.abs() < 100.0;
    for (row, numbers) in numbers.chunks_mut(columns as usize).enumerate() {
        numbers.iter_mut().filter(|number| row % 3 != 1 && !is_plain(number)).for_each(|number| *number = 0.5);
    }
    let input = float.bytes(&numbers);
    let mut values = float.values(&input);
    softmax(&mut values, columns as usize);
    let plan = softmax_plan(rows, columns, float.datatype()).expect("floats are planned");
    Case::new(format!("softmax of {rows} x {columns} {float:?}"), plan)
        .reads(BufferRole::Input, input)
        .writes(BufferRole::Output, after(float, values))
}

/// The whole grid.
pub fn cases() -> Vec<Case> {
    let mut random = Random(31);
    let mut cases = Vec::new();
    for float in Float::ALL {
        for activation in Activation::ALL {
            cases.push(activation_case(float, activation, 1, &mut random));
            cases.push(activation_case(float, activation, 5000, &mut random));
            cases.push(binary_case(float, Binary::bias(7, 129, activation), &mut random));
        }
        let (full, row) = (Strides { row: 33, column: 1 }, Strides { row: 0, column: 1 });
        let (column, one) = (Strides { row: 1, column: 0 }, Strides { row: 0, column: 0 });
        let turned = Strides { row: 1, column: 20 };
        for operation in PointwiseOperation::ALL {
            for [left, right] in [[full, full], [full, row], [full, column], [one, full], [turned, column]] {
                let (rows, columns, activation) = (20, 33, Activation::None);
                let binary = Binary { rows, columns, left, right, operation, activation };
                cases.push(binary_case(float, binary, &mut random));
            }
        }
        for (rows, columns) in [(1, 1), (5, 10), (9, 1000), (3, 1024), (4, 1025), (2, 5000)] {
            cases.push(softmax_case(float, rows, columns, &mut random));
        }
    }
    cases
}
