//! Tables of columns, padded by bytes as printf pads.
//!
//! Invariant: the last column is never padded on its right; scripted output is the cells joined by
//! one tab.

/// One column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading, or the text for it.
    pub heading: String,
    /// Width in bytes.
    pub width: usize,
    /// Aligned to the right.
    pub right: bool,
}

/// Pads `text` to `width` bytes: blanks before it if `right`, else after it.
pub fn pad(text: &str, width: usize, right: bool) -> String {
    let blanks = " ".repeat(width.saturating_sub(text.len()));
    if right { format!("{blanks}{text}") } else { format!("{text}{blanks}") }
}

/// One line of a table, ending in a newline: cells two blanks apart.
pub fn line<S: AsRef<str>>(columns: &[Column], cells: &[S]) -> String {
    let mut out = String::new();
    for (index, (column, cell)) in columns.iter().zip(cells).enumerate() {
        if index > 0 {
            out.push_str("  ");
        }
        let last = index + 1 == columns.len();
        if last && !column.right {
            out.push_str(cell.as_ref());
        } else {
            out.push_str(&pad(cell.as_ref(), column.width, column.right));
        }
    }
    out.push('\n');
    out
}

/// One line for scripts, ending in a newline: cells one tab apart.
pub fn scripted<S: AsRef<str>>(cells: &[S]) -> String {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    format!("{}\n", cells.join("\t"))
}

/// The line of headings.
pub fn headings(columns: &[Column]) -> String {
    let cells: Vec<&str> = columns.iter().map(|column| column.heading.as_str()).collect();
    line(columns, &cells)
}
