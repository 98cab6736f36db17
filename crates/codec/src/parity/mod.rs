//! Parity of raidz and dRAID (chapter 03, sections 3.3 and 3.5): P, Q and R over GF(2^8) with the
//! polynomial x^8+x^4+x^3+x^2+1, byte by byte.
//!
//! With data columns D_0 to D_(k-1), row r of parity is the sum of (2^r)^(k-1-i)·D_i. Shorter
//! columns count as extended with zeros.
//!
//! Invariant: what is reconstructed from any columns depends on no byte of a missing one, and
//! generating parity from reconstructed data gives the parity it was reconstructed from.

mod field;
mod kernel;
mod matrix;

#[cfg(test)]
mod tests;

/// Most parity columns a layout can have.
pub const MAX_PARITY: usize = 3;

/// A data column of a stripe.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// Read, and believed.
    Present(&'a [u8]),
    /// Not there, or not believed; of this many bytes.
    Missing(usize),
}

impl<'a> Column<'a> {
    /// Bytes of the column.
    pub fn length(&self) -> usize {
        match self {
            Self::Present(bytes) => bytes.len(),
            Self::Missing(length) => *length,
        }
    }

    /// The bytes there are; a missing column counts as zeros.
    fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Present(bytes) => bytes,
            Self::Missing(_) => &[],
        }
    }
}

/// What [`reconstruct`] worked out: `None` where the column was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Parity columns P, Q, R, as many as were asked about.
    pub parity: Vec<Option<Vec<u8>>>,
    /// Data columns.
    pub data: Vec<Option<Vec<u8>>>,
}

/// Computes parity columns: P, or P and Q, or P, Q and R, as many as `parity` holds.
///
/// # Panics
///
/// If there are more than [`MAX_PARITY`] parity columns, if they differ in length, or if a data
/// column is longer than they are.
pub fn generate(parity: &mut [&mut [u8]], data: &[&[u8]]) {
    assert!(parity.len() <= MAX_PARITY, "at most three parity columns");
    let height = parity.first().map_or(0, |column| column.len());
    assert!(parity.iter().all(|column| column.len() == height), "parity columns of one length");
    assert!(data.iter().all(|column| column.len() <= height), "parity covers all data");
    let mut rows = parity.iter_mut();
    let mut row = || rows.next().map(|column| &mut column[..]);
    let rows = [row(), row(), row()];
    kernel::accumulate(data, rows);
}

/// Works out the missing data columns, in order.
///
/// `parity` lists P, Q, R as far as the layout has them, each as long as the longest data column
/// (it may be longer); `None` marks one that is missing. Of the parity columns present the first
/// are used, as many as data columns are missing. `None` if those are too few or too short.
pub fn reconstruct_data(parity: &[Option<&[u8]>], data: &[Column<'_>]) -> Option<Vec<Vec<u8>>> {
    let missing: Vec<(usize, usize)> = data
        .iter()
        .enumerate()
        .filter(|(_, column)| matches!(column, Column::Missing(_)))
        .map(|(index, column)| (index, column.length()))
        .collect();
    let height = missing.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let present: Vec<(usize, &[u8])> = parity
        .iter()
        .take(MAX_PARITY)
        .enumerate()
        .filter_map(|(row, column)| Some((row, column.as_ref()?.get(..height)?)))
        .take(missing.len())
        .collect();
    if present.len() < missing.len() {
        return None;
    }

    // The parity of the data that is there, as if the missing columns were zero; its difference
    // from the parity on disk is what the missing columns contribute.
    let bytes: Vec<&[u8]> = data
        .iter()
        .map(|column| column.bytes())
        .map(|bytes| bytes.get(..height).unwrap_or(bytes))
        .collect();
    let mut syndromes: Vec<Vec<u8>> = vec![vec![0; height]; missing.len()];
    let mut rows = [None, None, None];
    for ((row, _), syndrome) in present.iter().zip(&mut syndromes) {
        *rows.get_mut(*row)? = Some(&mut syndrome[..]);
    }
    kernel::accumulate(&bytes, rows);
    for ((_, column), syndrome) in present.iter().zip(&mut syndromes) {
        kernel::add(syndrome, column);
    }

    let indices: Vec<usize> = missing.iter().map(|(index, _)| *index).collect();
    let rows: Vec<usize> = present.iter().map(|(row, _)| *row).collect();
    let inverse = matrix::inverse(&rows, &indices, data.len())?;
    if let ([[1, ..], ..], [_]) = (&inverse, &indices[..]) {
        return Some(syndromes);
    }
    let mut columns = Vec::with_capacity(missing.len());
    for ((_, length), coefficients) in missing.iter().zip(&inverse) {
        let mut column = vec![0; *length];
        for (coefficient, syndrome) in coefficients.iter().zip(&syndromes) {
            kernel::multiply_add(&mut column, *coefficient, syndrome);
        }
        columns.push(column);
    }
    Some(columns)
}

/// Works out every missing column, data and parity.
///
/// Like [`reconstruct_data`], and then the parity columns given as `None`, as long as the longest
/// data column.
pub fn reconstruct(parity: &[Option<&[u8]>], data: &[Column<'_>]) -> Option<Recovered> {
    if parity.len() > MAX_PARITY {
        return None;
    }
    let mut found = reconstruct_data(parity, data)?.into_iter();
    let recovered: Vec<Option<Vec<u8>>> = data
        .iter()
        .map(|column| match column {
            Column::Present(_) => None,
            Column::Missing(_) => found.next(),
        })
        .collect();
    let whole: Vec<&[u8]> = data
        .iter()
        .zip(&recovered)
        .map(|(column, recovered)| recovered.as_deref().unwrap_or(column.bytes()))
        .collect();
    let height = data.iter().map(Column::length).max().unwrap_or(0);
    let mut rows: Vec<Option<Vec<u8>>> =
        parity.iter().map(|column| column.is_none().then(|| vec![0; height])).collect();
    let mut targets = rows.iter_mut();
    let mut target = || targets.next().and_then(|row| row.as_deref_mut());
    let targets = [target(), target(), target()];
    kernel::accumulate(&whole, targets);
    Some(Recovered { parity: rows, data: recovered })
}
