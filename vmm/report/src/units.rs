//! Formatting of numbers for people.

/// Formats `1234567` as `1,234,567`.
pub(crate) fn grouped(value: u128) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a value with four significant digits and a decimal prefix: `1.235 M`. Whole numbers below 1000 have no decimals.
pub(crate) fn si(value: f64) -> String {
    const PREFIXES: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let mut scaled = value;
    let mut prefix = 0;
    while scaled.abs() >= 999.95 && prefix + 1 < PREFIXES.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    if prefix == 0 && value.fract() == 0.0 {
        return format!("{value}");
    }
    format!("{}{}", significant(scaled), PREFIXES[prefix])
}

/// Formats a value with four significant digits where the value is at least 1, with three decimals below.
fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.995 => 1,
        v if v >= 9.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Formats a number of bytes with a binary prefix: `1.50 MiB`.
pub(crate) fn bytes(value: u64) -> String {
    const PREFIXES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = value as f64;
    let mut prefix = 0;
    while scaled >= 1023.95 && prefix + 1 < PREFIXES.len() {
        scaled /= 1024.0;
        prefix += 1;
    }
    if prefix == 0 {
        format!("{value} B")
    } else {
        let decimals = if scaled >= 99.95 { 1 } else { 2 };
        format!("{scaled:.decimals$} {}", PREFIXES[prefix])
    }
}

/// Formats a time in picoseconds with a suitable unit: `1.235 ms`.
pub(crate) fn time(ps: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("s", 1e12), ("ms", 1e9), ("us", 1e6), ("ns", 1e3)];
    for (unit, size) in UNITS {
        if ps >= 0.99995 * size {
            return format!("{} {unit}", significant(ps / size));
        }
    }
    if ps == 0.0 {
        "0 s".into()
    } else {
        format!("{ps:.0} ps")
    }
}

/// Formats a ratio such as cycles per instruction with four decimals; `None` as `-`.
pub(crate) fn cpi(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.4}"))
}

/// Formats a rate in FLOP/s with a decimal prefix; `None` as `-`.
pub(crate) fn flops(value: Option<f64>) -> String {
    value.map_or_else(
        || "-".into(),
        |value| {
            let text = si(value);
            let gap = if text.contains(' ') { "" } else { " " };
            format!("{text}{gap}FLOP/s")
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(si(999.0), "999");
        assert_eq!(si(1234.0), "1.234 k");
        assert_eq!(si(999_960.0), "1.000 M");
        assert_eq!(si(12_345_678.0), "12.35 M");
        assert_eq!(si(0.5), "0.500");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(u64::MAX), "16.00 EiB");
        assert_eq!(time(0.0), "0 s");
        assert_eq!(time(12.0), "12 ps");
        assert_eq!(time(1_300_000.0), "1.300 us");
        assert_eq!(time(2.5e12), "2.500 s");
        assert_eq!(flops(Some(2e9)), "2.000 GFLOP/s");
        assert_eq!(flops(Some(12.0)), "12 FLOP/s");
        assert_eq!(cpi(None), "-");
    }
}
