//! 5x5 blocks: products, and elimination without pivoting, as BT does it. The blocks are strictly dominant in their diagonal, so that no
//! pivot is small.

/// The unknowns of a cell.
pub(crate) type Cell = [f64; 5];
/// What a cell's unknowns have to do with those of another.
pub(crate) type Block = [Cell; 5];

/// `vector` minus the product of `block` and `other`.
#[inline(always)]
pub(crate) fn subtract_product(vector: &mut Cell, block: &Block, other: &Cell) {
    for (value, row) in vector.iter_mut().zip(block) {
        *value -= row.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
    }
}

/// `block` minus the product of `a` and `b`.
#[inline(always)]
pub(crate) fn subtract_block_product(block: &mut Block, a: &Block, b: &Block) {
    for (row, of_a) in block.iter_mut().zip(a) {
        for (factor, of_b) in of_a.iter().zip(b) {
            for (value, other) in row.iter_mut().zip(of_b) {
                *value -= factor * other;
            }
        }
    }
}

/// Multiplies `block` and `vector` by the inverse of `pivot` (Gauss and Jordan).
#[inline(always)]
pub(crate) fn divide(pivot: &mut Block, block: &mut Block, vector: &mut Cell) {
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
    fn what_is_divided_and_multiplied_is_as_before() {
        let block = |seed: f64| -> Block {
            std::array::from_fn(|i| {
                std::array::from_fn(|j| if i == j { 6.0 } else { ((i * 5 + j) as f64 * seed).sin() })
            })
        };
        let (pivot, right, vector) = (block(1.3), block(2.1), [1.0, -2.0, 3.0, 0.5, 4.0]);
        let (mut gone, mut quotient, mut solution) = (pivot, right, vector);
        divide(&mut gone, &mut quotient, &mut solution);
        let (mut rest, mut left) = (right, vector);
        subtract_block_product(&mut rest, &pivot, &quotient);
        subtract_product(&mut left, &pivot, &solution);
        assert!(rest.iter().flatten().chain(&left).all(|value| value.abs() < 1e-12), "{rest:?} {left:?}");
        assert!(quotient != right && solution != vector);
    }
}
