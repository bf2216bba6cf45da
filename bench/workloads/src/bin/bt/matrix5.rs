//! 5x5 matrices: products, and elimination without pivoting, as in BT. The matrices are strictly
//! diagonally dominant, so no pivot is small.

/// The five unknowns of a cell.
pub(crate) type Vector5 = [f64; 5];
/// The coupling between the unknowns of two cells.
pub(crate) type Matrix5 = [Vector5; 5];

/// Subtracts the product of `block` and `other` from `vector`.
#[inline(always)]
pub(crate) fn subtract_product(vector: &mut Vector5, block: &Matrix5, other: &Vector5) {
    for (value, row) in vector.iter_mut().zip(block) {
        *value -= row.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
    }
}

/// Subtracts the product of `a` and `b` from `block`.
#[inline(always)]
pub(crate) fn subtract_block_product(block: &mut Matrix5, a: &Matrix5, b: &Matrix5) {
    for (row, of_a) in block.iter_mut().zip(a) {
        for (factor, of_b) in of_a.iter().zip(b) {
            for (value, other) in row.iter_mut().zip(of_b) {
                *value -= factor * other;
            }
        }
    }
}

/// Multiplies `block` and `vector` by the inverse of `pivot` (Gauss-Jordan).
#[inline(always)]
pub(crate) fn divide(pivot: &mut Matrix5, block: &mut Matrix5, vector: &mut Vector5) {
    for at in 0..5 {
        let factor = 1.0 / pivot[at][at];
        pivot[at].iter_mut().chain(&mut block[at]).for_each(|value| *value *= factor);
        vector[at] *= factor;
        let (pivot_row, block_row, value) = (pivot[at], block[at], vector[at]);
        for other in (0..5).filter(|other| *other != at) {
            let factor = pivot[other][at];
            for column in 0..5 {
                pivot[other][column] -= factor * pivot_row[column];
                block[other][column] -= factor * block_row[column];
            }
            vector[other] -= factor * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_inverts_multiplication() {
        let block = |seed: f64| -> Matrix5 {
            std::array::from_fn(|i| {
                std::array::from_fn(|j| if i == j { 6.0 } else { ((i * 5 + j) as f64 * seed).sin() })
            })
        };
        let (pivot, rhs, vector) = (block(1.3), block(2.1), [1.0, -2.0, 3.0, 0.5, 4.0]);
        let (mut pivot_copy, mut quotient, mut solution) = (pivot, rhs, vector);
        divide(&mut pivot_copy, &mut quotient, &mut solution);
        let (mut rest, mut left) = (rhs, vector);
        subtract_block_product(&mut rest, &pivot, &quotient);
        subtract_product(&mut left, &pivot, &solution);
        assert!(rest.iter().flatten().chain(&left).all(|value| value.abs() < 1e-12), "{rest:?} {left:?}");
        assert!(quotient != rhs && solution != vector);
    }
}
