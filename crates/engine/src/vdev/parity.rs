//! Parity of one row of columns, and data columns rebuilt from it.
//!
//! Chapter 03, sections 3.3 and 3.5. Invariant: columns shorter than the first one count as
//! followed by zeros; what is rebuilt has the length its column should have.

/// Multiplication by 2 in GF(2^8) with polynomial 0x11d.
fn double(value: u8) -> u8 {
    (value << 1) ^ if value & 0x80 != 0 { 0x1d } else { 0 }
}

fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

/// 1 divided by `a`, which is not 0: a to the power of 254.
fn inverse(a: u8) -> u8 {
    let square = |x: u8| multiply(x, x);
    let mut power = square(a);
    let mut result = power;
    for _ in 0..6 {
        power = square(power);
        result = multiply(result, power);
    }
    result
}

/// 2 to the power of `exponent`.
fn power_of_two(exponent: usize) -> u8 {
    (0..exponent % 255).fold(1, |value, _| double(value))
}

/// Parity column `index` (0: P, 1: Q, 2: R) of the data columns, `height` bytes long.
fn parity_column<'a>(
    index: usize,
    data: impl Iterator<Item = Option<&'a [u8]>>,
    height: usize,
) -> Vec<u8> {
    let mut parity = vec![0u8; height];
    for column in data {
        match index {
            0 => {}
            1 => parity.iter_mut().for_each(|byte| *byte = double(*byte)),
            _ => parity.iter_mut().for_each(|byte| *byte = double(double(*byte))),
        }
        for (byte, value) in parity.iter_mut().zip(column.unwrap_or_default()) {
            *byte ^= value;
        }
    }
    parity
}

/// The `count` parity columns of a row.
pub(super) fn generate(count: usize, data: &[&[u8]], height: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| parity_column(index, data.iter().copied().map(Some), height)).collect()
}

/// Rebuilds the data columns that are `None`.
///
/// `parity` and `data` are the columns of a row as far as they are known, `lengths` the lengths of
/// the data columns (an empty one is known to be empty). Gives the rebuilt columns with their
/// indexes in `data`; `None` if there is not enough parity.
pub(super) fn rebuild(
    parity: &[Option<&[u8]>],
    data: &[Option<&[u8]>],
    lengths: &[usize],
    height: usize,
) -> Option<Vec<(usize, Vec<u8>)>> {
    let lost = |index: &usize| {
        data.get(*index).is_some_and(Option::is_none) && lengths.get(*index).is_some_and(|&l| l > 0)
    };
    let missing: Vec<usize> = (0..data.len()).filter(lost).collect();
    let used: Vec<(usize, &[u8])> =
        parity.iter().enumerate().filter_map(|(i, column)| Some((i, (*column)?))).collect();
    let used = used.get(..missing.len())?;
    let mut sums = Vec::with_capacity(used.len());
    let mut matrix = Vec::with_capacity(used.len());
    for &(index, stored) in used {
        let mut sum = parity_column(index, data.iter().copied(), height);
        sum.iter_mut().zip(stored).for_each(|(byte, value)| *byte ^= value);
        sums.push(sum);
        let factor = |column: &usize| power_of_two(index * (data.len() - 1 - column));
        matrix.push(missing.iter().map(factor).collect::<Vec<u8>>());
    }
    let inverse = invert(matrix)?;
    let mut rebuilt = Vec::with_capacity(missing.len());
    for (&index, factors) in missing.iter().zip(&inverse) {
        let mut column = vec![0u8; height];
        for (&factor, sum) in factors.iter().zip(&sums) {
            let table: [u8; 256] = std::array::from_fn(|value| multiply(factor, value as u8));
            for (byte, &value) in column.iter_mut().zip(sum) {
                *byte ^= table.get(usize::from(value)).copied().unwrap_or_default();
            }
        }
        column.truncate(lengths.get(index).copied().unwrap_or(height));
        rebuilt.push((index, column));
    }
    Some(rebuilt)
}

/// The inverse of a small square matrix, by elimination; `None` if it has none.
fn invert(mut matrix: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let size = matrix.len();
    for (index, row) in matrix.iter_mut().enumerate() {
        row.extend((0..size).map(|column| u8::from(column == index)));
    }
    for pivot in 0..size {
        let row =
            (pivot..size).find(|&row| matrix.get(row).and_then(|r| r.get(pivot)) != Some(&0))?;
        matrix.swap(pivot, row);
        let scale = inverse(*matrix.get(pivot)?.get(pivot)?);
        matrix.get_mut(pivot)?.iter_mut().for_each(|value| *value = multiply(*value, scale));
        let pivot_row = matrix.get(pivot)?.clone();
        for (index, row) in matrix.iter_mut().enumerate() {
            let factor = *row.get(pivot)?;
            if index == pivot || factor == 0 {
                continue;
            }
            row.iter_mut().zip(&pivot_row).for_each(|(a, &b)| *a ^= multiply(factor, b));
        }
    }
    matrix.into_iter().map(|row| row.get(size..).map(<[u8]>::to_vec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 03, section 3.3.
    #[test]
    fn vectors_of_the_reference() {
        let hex = |text: &str| hex::decode(text).unwrap();
        let columns = [hex("0180ff10"), hex("02400020"), hex("0320aa30")];
        let data: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        assert_eq!(generate(3, &data, 4), [hex("00e05500"), hex("039a7130"), hex("1bd5e1ad")]);
        let columns =
            [hex("1011121314151617"), hex("a0a1a2a3a4a5a6a7"), hex("deadbeef"), hex("cafebabe")];
        let data: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        let expected = [hex("a4e3b4e1b0b0b0b0"), hex("518ff9530a06121e"), hex("33867e73fbab5b0b")];
        assert_eq!(generate(3, &data, 8), expected);
    }

    #[test]
    fn anything_up_to_the_parity_comes_back() {
        for width in 1..=9usize {
            let columns: Vec<Vec<u8>> = (0..width)
                .map(|c| (0..8 - c % 3).map(|i| (c * 37 + i * 11 + 5) as u8).collect())
                .collect();
            let data: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
            let lengths: Vec<usize> = columns.iter().map(Vec::len).collect();
            let parity = generate(3, &data, 8);
            for lost in 0..1u32 << (width + 3) {
                let known = |index: usize| lost & (1 << index) == 0;
                let parity: Vec<_> =
                    (0..3).map(|i| known(i).then_some(parity[i].as_slice())).collect();
                let some: Vec<_> = (0..width).map(|i| known(i + 3).then_some(data[i])).collect();
                let rebuilt = rebuild(&parity, &some, &lengths, 8);
                assert_eq!(rebuilt.is_some(), lost.count_ones() <= 3, "{width} {lost:b}");
                for (index, column) in rebuilt.into_iter().flatten() {
                    assert_eq!(column, columns[index]);
                }
            }
        }
    }
}
