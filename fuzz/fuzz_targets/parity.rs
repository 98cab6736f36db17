//! Stripes of arbitrary widths and lengths, and arbitrary losses.
#![no_main]

use cenote_codec::parity::{Column, generate, reconstruct};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&[shape, lost0, lost1, lost2], data)) = input.split_first_chunk() else { return };
    let count = usize::from(shape % 3) + 1;
    let width = usize::from(shape / 3 % 16) + 1;
    let columns: Vec<&[u8]> = data.chunks(data.len().div_ceil(width).max(1)).collect();
    let height = columns.iter().map(|column| column.len()).max().unwrap_or(0);
    let mut parity = vec![vec![0; height]; count];
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    generate(&mut rows, &columns);
    let total = count + columns.len();
    let lost = [lost0, lost1, lost2].map(|lost| usize::from(lost) % total);
    let lost = &lost[..count];
    let present: Vec<Option<&[u8]>> = parity
        .iter()
        .enumerate()
        .map(|(i, column)| (!lost.contains(&i)).then_some(&column[..]))
        .collect();
    let stripe: Vec<Column<'_>> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| match lost.contains(&(count + i)) {
            true => Column::Missing(column.len()),
            false => Column::Present(column),
        })
        .collect();
    let recovered = reconstruct(&present, &stripe).expect("no more lost than parity columns");
    for (found, real) in recovered.data.iter().zip(&columns) {
        assert!(found.as_ref().is_none_or(|found| found == real));
    }
    for (found, real) in recovered.parity.iter().zip(&parity) {
        assert!(found.as_ref().is_none_or(|found| found == real));
    }
});
