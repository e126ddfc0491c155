//! The two-dimensional Haar transform of a communication matrix, weighted by scale.

/// Number of rows, and of columns, of a scaled matrix.
pub const SIDE: usize = 16;
/// Number of elements of a scaled matrix, and of its vector.
pub const CELLS: usize = SIDE * SIDE;

/// Weights of coefficients by scale, the coarsest first (Jacobs, Finkelstein and Salesin, "Fast Multiresolution Image Querying",
/// SIGGRAPH 1995, painted queries, channel Y).
pub const WEIGHTS: [f64; 6] = [4.04, 0.78, 0.46, 0.42, 0.41, 0.32];

/// Transforms a row in place. Its length must be a power of two.
///
/// Averages of neighbours go into the first half, and the first neighbour less the average into the second half. The first half is
/// then transformed in turn: 5 9 4 2 becomes 5 2 -2 1.
pub fn transform(row: &mut [f64]) {
    debug_assert!(row.len().is_power_of_two());
    let mut length = row.len();
    let mut pairs = Vec::with_capacity(length);
    while length > 1 {
        pairs.clear();
        pairs.extend(row[..length].chunks_exact(2).map(|pair| (pair[0], pair[1])));
        length /= 2;
        for (at, &(first, second)) in pairs.iter().enumerate() {
            let average = (first + second) / 2.0;
            row[at] = average;
            row[length + at] = first - average;
        }
    }
}

/// Transforms every row of a scaled matrix, then every column.
pub fn transform_matrix(matrix: &mut [f64; CELLS]) {
    matrix.chunks_exact_mut(SIDE).for_each(transform);
    let mut column = [0.0; SIDE];
    for at in 0..SIDE {
        for (row, value) in column.iter_mut().enumerate() {
            *value = matrix[row * SIDE + at];
        }
        transform(&mut column);
        for (row, value) in column.iter().enumerate() {
            matrix[row * SIDE + at] = *value;
        }
    }
}

/// Returns the weight of the coefficient in a row and a column.
pub fn weight(row: usize, column: usize) -> f64 {
    let level = |index: usize| (index + 1).ilog2() as usize;
    WEIGHTS[level(row).max(level(column)).min(WEIGHTS.len() - 1)]
}

/// Transforms a scaled matrix into the vector that is compared.
pub fn vector(mut matrix: [f64; CELLS]) -> [f64; CELLS] {
    transform_matrix(&mut matrix);
    for (at, value) in matrix.iter_mut().enumerate() {
        *value *= weight(at / SIDE, at % SIDE);
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_example_comes_out() {
        let mut row = [5.0, 9.0, 4.0, 2.0];
        transform(&mut row);
        assert_eq!(row, [5.0, 2.0, -2.0, 1.0]);
    }

    #[test]
    fn rows_come_before_columns() {
        // Every row of the matrix is 0 1 2 ... 15. So columns are constant, and only the first row has coefficients other than zero.
        let mut matrix = [0.0; CELLS];
        for (at, value) in matrix.iter_mut().enumerate() {
            *value = (at % SIDE) as f64;
        }
        transform_matrix(&mut matrix);
        let mut expected = [0.0; SIDE];
        expected[0] = 7.5;
        expected[1] = -4.0;
        expected[2..4].fill(-2.0);
        expected[4..8].fill(-1.0);
        expected[8..].fill(-0.5);
        assert_eq!(matrix[..SIDE], expected);
        assert!(matrix[SIDE..].iter().all(|&value| value == 0.0));
    }

    #[test]
    fn weights_fall_with_the_scale() {
        assert_eq!(weight(0, 0), 4.04);
        assert_eq!(
            (weight(0, 1), weight(2, 0), weight(2, 2)),
            (0.78, 0.78, 0.78)
        );
        assert_eq!(
            (weight(3, 0), weight(1, 6), weight(7, 6)),
            (0.46, 0.46, 0.42)
        );
        assert_eq!(
            (weight(14, 0), weight(0, 15), weight(15, 15)),
            (0.42, 0.41, 0.41)
        );
        assert_eq!((weight(31, 0), weight(1000, 1000)), (0.32, 0.32));
    }
}
