//! The vectors of chapter 03, section 3.3, and every pattern of lost columns.

use proptest::prelude::*;

use super::*;

fn parity_of(count: usize, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let height = data.iter().map(Vec::len).max().unwrap_or(0);
    let mut parity = vec![vec![0xaa; height]; count];
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    generate(&mut rows, &columns);
    parity
}

#[test]
fn vectors() {
    let cases: [(&[&str], [&str; 3]); 2] = [
        (&["0180ff10", "02400020", "0320aa30"], ["00e05500", "039a7130", "1bd5e1ad"]),
        (
            &["1011121314151617", "a0a1a2a3a4a5a6a7", "deadbeef", "cafebabe"],
            ["a4e3b4e1b0b0b0b0", "518ff9530a06121e", "33867e73fbab5b0b"],
        ),
    ];
    for (columns, expected) in cases {
        let data: Vec<Vec<u8>> = columns.iter().map(|text| hex::decode(text).unwrap()).collect();
        for count in 1..=3 {
            let parity: Vec<String> = parity_of(count, &data).iter().map(hex::encode).collect();
            assert_eq!(parity, expected[..count]);
        }
    }
}

/// Loses the columns in the bit mask `lost` (parity first) and checks what comes back.
fn lose(lost: u32, parity: &[Vec<u8>], data: &[Vec<u8>]) {
    let is_lost = |index: usize| lost & (1 << index) != 0;
    let some: Vec<Option<&[u8]>> = parity
        .iter()
        .enumerate()
        .map(|(i, column)| (!is_lost(i)).then_some(column.as_slice()))
        .collect();
    let columns: Vec<Column<'_>> = data
        .iter()
        .enumerate()
        .map(|(i, column)| match is_lost(parity.len() + i) {
            true => Column::Missing(column.len()),
            false => Column::Present(column),
        })
        .collect();
    let recovered = reconstruct(&some, &columns);
    if lost.count_ones() as usize > parity.len() {
        assert_eq!(recovered, None, "{lost:b}");
        return;
    }
    let recovered = recovered.unwrap();
    for (i, (got, real)) in recovered.parity.iter().zip(parity).enumerate() {
        assert_eq!(got.as_ref(), is_lost(i).then_some(real), "parity {i}, lost {lost:b}");
    }
    for (i, (got, real)) in recovered.data.iter().zip(data).enumerate() {
        let lost_one = is_lost(parity.len() + i).then_some(real);
        assert_eq!(got.as_ref(), lost_one, "data {i}, lost {lost:b}");
    }
}

fn filled(lengths: &[usize]) -> Vec<Vec<u8>> {
    let mut state = 7u64;
    let mut byte = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    lengths.iter().map(|length| (0..*length).map(|_| byte()).collect()).collect()
}

#[test]
fn every_pattern_of_losses() {
    for (count, lengths) in [
        (1, vec![100; 4]),
        (2, vec![130, 130, 66, 66, 66]),
        (3, vec![512, 512, 512, 448, 448]),
        (3, vec![64, 0, 64, 1]),
        (3, vec![77]),
    ] {
        let data = filled(&lengths);
        let parity = parity_of(count, &data);
        for lost in 0..1 << (count + data.len()) {
            if u32::count_ones(lost) as usize <= count + 1 {
                lose(lost, &parity, &data);
            }
        }
    }
}

#[test]
fn the_widest_stripes() {
    let data = filled(&[40; 252]);
    let parity = parity_of(3, &data);
    for lost in [[0, 1, 251], [3, 100, 200], [249, 250, 251], [0, 125, 250]] {
        let columns: Vec<Column<'_>> = data
            .iter()
            .enumerate()
            .map(|(i, column)| match lost.contains(&i) {
                true => Column::Missing(40),
                false => Column::Present(column),
            })
            .collect();
        let some: Vec<Option<&[u8]>> = parity.iter().map(|column| Some(&column[..])).collect();
        let found = reconstruct_data(&some, &columns).unwrap();
        assert_eq!(found, lost.map(|i| data[i].clone()));
    }
}

#[test]
fn one_column_is_copied() {
    let data = filled(&[300]);
    for parity in parity_of(3, &data) {
        assert_eq!(parity, data[0]);
    }
}

#[test]
fn parity_too_short_does_not_count() {
    let data = filled(&[64, 64]);
    let parity = parity_of(1, &data);
    let columns = [Column::Present(&data[0]), Column::Missing(64)];
    assert_eq!(reconstruct_data(&[Some(&parity[0][..63])], &columns), None);
    assert_eq!(reconstruct_data(&[None, None], &columns), None);
    assert_eq!(reconstruct_data(&[Some(&parity[0])], &columns), Some(vec![data[1].clone()]));
}

#[test]
fn field_tables_agree_with_doubling() {
    for a in 0..=255u8 {
        for b in 0..=255u8 {
            let mut product = 0;
            let mut power = a;
            for bit in 0..8 {
                if b & (1 << bit) != 0 {
                    product ^= power;
                }
                power = field::double(power);
            }
            assert_eq!(field::multiply(a, b), product);
        }
        if a != 0 {
            assert_eq!(field::multiply(a, field::invert(a)), 1);
        }
    }
}

#[test]
fn kernels_agree() {
    let data = filled(&[200, 200, 136, 136, 100]);
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut rows = vec![vec![0; 200]; 3];
    let [p, q, r] = &mut rows[..] else { unreachable!() };
    kernel::accumulate_portable(&columns, [Some(p), Some(q), Some(r)]);
    assert_eq!(rows, parity_of(3, &data));
    for coefficient in 2..=255 {
        let mut chosen = data[0].clone();
        let mut portable = data[0].clone();
        kernel::multiply_add(&mut chosen, coefficient, &data[1]);
        kernel::multiply_add_portable(&mut portable, coefficient, &data[1]);
        assert_eq!(chosen, portable);
    }
}

proptest! {
    #[test]
    fn random_stripes(
        count in 1usize..=3,
        lengths in proptest::collection::vec(0usize..300, 1..12),
        picks: [usize; 3],
    ) {
        let data = filled(&lengths);
        let parity = parity_of(count, &data);
        let lost = picks[..count].iter().fold(0, |mask, pick| mask | 1 << (pick % (count + data.len())));
        lose(lost, &parity, &data);
    }
}
