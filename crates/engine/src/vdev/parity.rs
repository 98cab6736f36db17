//! Parity of one row of columns, and data columns rebuilt from it.
//!
//! Chapter 03, sections 3.3 and 3.5; the arithmetic is `cenote_codec::parity`. Invariant: columns
//! shorter than the first one count as followed by zeros; what is rebuilt has the length its
//! column should have.

use bytes::Bytes;
use cenote_codec::parity::{self, Column, MAX_PARITY};

/// The `count` parity columns of a row, each at least `height` bytes long.
pub(super) fn generate(count: usize, data: &[&[u8]], height: usize) -> Vec<Vec<u8>> {
    let tallest = data.iter().map(|column| column.len()).max().unwrap_or(0);
    let mut columns = vec![vec![0; height.max(tallest)]; count.min(MAX_PARITY)];
    let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
    parity::generate(&mut targets, data);
    columns
}

/// Rebuilds the data columns that are `None` and not empty.
///
/// `parity` and `data` are the columns of a row as far as they are known, `lengths` the lengths of
/// the data columns. Gives the rebuilt columns with their indexes in `data`; `None` if there is not
/// enough parity.
pub(super) fn rebuild(
    parity: &[Option<&[u8]>],
    data: &[Option<&[u8]>],
    lengths: &[usize],
) -> Option<Vec<(usize, Bytes)>> {
    let columns: Vec<Column<'_>> = data
        .iter()
        .zip(lengths)
        .map(|(column, &length)| match column {
            Some(bytes) => Column::Present(bytes),
            None if length == 0 => Column::Present(&[]),
            None => Column::Missing(length),
        })
        .collect();
    let missing = |(_, column): &(usize, &Column<'_>)| matches!(column, Column::Missing(_));
    let indexes = columns.iter().enumerate().filter(missing).map(|(index, _)| index);
    let rebuilt = parity::reconstruct_data(parity, &columns)?;
    Some(indexes.zip(rebuilt.into_iter().map(Bytes::from)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_columns_are_known() {
        let data: [&[u8]; 3] = [&[1, 2, 3, 4], &[5, 6], &[]];
        let parity = generate(2, &data, 4);
        let known: Vec<Option<&[u8]>> =
            parity.iter().map(|column| Some(column.as_slice())).collect();
        let rebuilt = rebuild(&known, &[None, None, None], &[4, 2, 0]).unwrap();
        assert_eq!(rebuilt.len(), 2);
        for (index, bytes) in rebuilt {
            assert_eq!(bytes, data[index]);
        }
        assert!(rebuild(&[known[0], None], &[None, None, None], &[4, 2, 0]).is_none());
    }
}
