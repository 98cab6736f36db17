//! Numbers with units: `1.5G`, `128k`, `10MiB`.
//!
//! Invariant: a number that does not fit 64 bits is refused, not cut.

const UNITS: &str = "BKMGTPEZ";

/// Reads a number with an optional unit (powers of 1024; letters of either case).
///
/// # Errors
/// The words of OpenZFS.
pub fn parse(text: &str) -> Result<u64, String> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(format!("bad numeric value '{text}'"));
    }
    let too_large = || "numeric value is too large".to_owned();
    let whole = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, mut rest) = text.split_at(whole);
    let Some(fraction) = rest.strip_prefix('.') else {
        let number: u64 = digits.parse().map_err(|_| too_large())?;
        let shift = shift(rest)?;
        return number.checked_mul(unit(shift).ok_or_else(too_large)?).ok_or_else(too_large);
    };
    let end = fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len());
    let written = text.get(..whole + 1 + end).unwrap_or(text);
    rest = fraction.get(end..).unwrap_or("");
    let number: f64 = match written {
        "." => 0.0,
        written => written.trim_end_matches('.').parse().map_err(|_| too_large())?,
    };
    let value = number * 2f64.powi(i32::try_from(shift(rest)?).unwrap_or(i32::MAX));
    if !value.is_finite() || value >= u64::MAX as f64 {
        return Err(too_large());
    }
    Ok(value as u64)
}

fn unit(shift: u32) -> Option<u64> {
    1u64.checked_shl(shift)
}

fn shift(suffix: &str) -> Result<u32, String> {
    let bad = || format!("invalid numeric suffix '{suffix}'");
    let mut letters = suffix.chars();
    let Some(first) = letters.next() else { return Ok(0) };
    let index = UNITS.find(first.to_ascii_uppercase()).ok_or_else(bad)?;
    let tail = letters.as_str();
    let is_fine = tail.is_empty()
        || (index > 0 && (tail.eq_ignore_ascii_case("b") || tail.eq_ignore_ascii_case("ib")));
    if !is_fine {
        return Err(bad());
    }
    Ok(u32::try_from(index * 10).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::parse;

    /// What `zfs create -o quota=...` and `-V` of OpenZFS 2.1 said.
    #[test]
    fn numbers_are_read_as_openzfs_reads_them() {
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("128k"), Ok(128 << 10));
        assert_eq!(parse("128KiB"), Ok(128 << 10));
        assert_eq!(parse("10MB"), Ok(10 << 20));
        assert_eq!(parse("512B"), Ok(512));
        assert_eq!(parse("1.5m"), Ok(1_572_864));
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("16E"), Err("numeric value is too large".into()));
        assert_eq!(parse("1Z"), Err("numeric value is too large".into()));
        assert_eq!(parse("99999999999999999999"), Err("numeric value is too large".into()));
        assert_eq!(parse("-1"), Err("bad numeric value '-1'".into()));
        assert_eq!(parse("x"), Err("bad numeric value 'x'".into()));
        assert_eq!(parse(""), Err("bad numeric value ''".into()));
        assert_eq!(parse("1X"), Err("invalid numeric suffix 'X'".into()));
        assert_eq!(parse("1Q"), Err("invalid numeric suffix 'Q'".into()));
        assert_eq!(parse("0.5.5G"), Err("invalid numeric suffix '.5G'".into()));
        assert_eq!(parse("0x10000"), Err("invalid numeric suffix 'x10000'".into()));
        assert_eq!(parse("1BB"), Err("invalid numeric suffix 'BB'".into()));
    }
}
