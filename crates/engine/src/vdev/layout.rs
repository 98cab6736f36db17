//! Where the pieces of one block lie: rows of parity and data columns.
//!
//! The common form of every raidz, expanded raidz and dRAID layout. Invariant of a [`Map`]: each row
//! has at least one data column after its parity columns, the data columns of all rows together
//! cover the padded block exactly once, and no column of a row is taller than the row's first one.

use bytes::BytesMut;

/// Largest padded block a layout accepts, in bytes (16 MiB of data, rounded to a sector).
pub const MAX_BLOCK: u64 = (16 << 20) + (1 << 16);

/// A piece of a block on one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Index of the child.
    pub child: u32,
    /// Byte offset in the child's allocatable area; with `scratch`, in its boot area instead.
    pub offset: u64,
    /// Bytes; 0 for a dRAID column that has no data in this block.
    pub size: u64,
    /// Zero bytes that follow on disk and belong to the layout (dRAID's empty sectors).
    pub pad: u64,
    /// First byte in the padded block (0 for parity).
    pub position: u64,
    /// Absolute sector number in the vdev's address space; only set for expanded raidz rows.
    pub sector: u64,
    /// The bytes are in the scratch area used by the first step of a raidz expansion.
    pub scratch: bool,
}

/// A second place of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twin {
    /// Index in [`Map::columns`].
    pub column: usize,
    /// As of a [`Column`].
    pub child: u32,
    /// As of a [`Column`].
    pub offset: u64,
    /// As of a [`Column`].
    pub scratch: bool,
}

/// The layout of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Parity columns at the start of every row (1 to 3).
    pub parity: usize,
    /// Bytes of the padded block: its size rounded up to whole sectors.
    pub size: u64,
    columns: Vec<Column>,
    ends: Vec<usize>,
    twins: Vec<Twin>,
}

impl Map {
    /// A map without rows yet.
    pub(super) fn new(parity: usize, size: u64) -> Self {
        Self { parity, size, columns: Vec::new(), ends: Vec::new(), twins: Vec::new() }
    }

    /// Adds a column to the row being built.
    pub(super) fn push(&mut self, column: Column) {
        self.columns.push(column);
    }

    /// Ends the row being built.
    pub(super) fn end_row(&mut self) {
        self.ends.push(self.columns.len());
    }

    /// The column that was added last lies there as well.
    pub(super) fn push_twin(&mut self, child: u32, offset: u64, scratch: bool) {
        let column = self.columns.len().saturating_sub(1);
        self.twins.push(Twin { column, child, offset, scratch });
    }

    /// Where columns lie besides: an expansion has moved them, but not yet all of their row, which is read where
    /// it was until then (chapter 08, section 21.3). Ascending by column.
    pub fn twins(&self) -> &[Twin] {
        &self.twins
    }

    /// The columns of all rows, row by row.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The rows: index of the first column in [`Map::columns`], and the columns.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[Column])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .filter_map(|(start, &end)| Some((start, self.columns.get(start..end)?)))
    }

    /// Number of rows.
    pub fn row_count(&self) -> usize {
        self.ends.len()
    }

    /// Indexes in [`Map::columns`] of the columns that hold the block's own bytes.
    pub fn data_columns(&self) -> impl Iterator<Item = (usize, &Column)> {
        let parity = self.parity;
        self.rows().flat_map(move |(start, row)| {
            row.iter()
                .enumerate()
                .skip(parity)
                .map(move |(index, column)| (start + index, column))
                .filter(|(_, column)| column.size > 0)
        })
    }

    /// The block from the bytes of its columns: `bytes(index)` gives those of column `index`.
    /// `None` if a data column is absent or has the wrong length.
    pub fn assemble<'a>(&self, bytes: impl Fn(usize) -> Option<&'a [u8]>) -> Option<BytesMut> {
        let size = usize::try_from(self.size).ok()?;
        let mut block = BytesMut::with_capacity(size);
        for (index, column) in self.data_columns() {
            let source = bytes(index)?;
            if source.len() as u64 != column.size {
                return None;
            }
            let start = usize::try_from(column.position).ok()?;
            if start == block.len() {
                block.extend_from_slice(source);
            } else {
                block.resize(size, 0);
                block.get_mut(start..start.checked_add(source.len())?)?.copy_from_slice(source);
            }
        }
        if block.len() != size {
            return None;
        }
        Some(block)
    }

    /// The bytes of data column `column` inside a padded block.
    pub fn slice_of<'a>(&self, column: &Column, block: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(column.position).ok()?;
        block.get(start..start.checked_add(usize::try_from(column.size).ok()?)?)
    }
}

/// `value` rounded up to a multiple of `unit`; `None` on overflow or a zero unit.
pub fn round_up(value: u64, unit: u64) -> Option<u64> {
    value.checked_next_multiple_of(unit)
}
