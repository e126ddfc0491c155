//! Quad-age LRU in the notation of nanoBench (Abel and Reineke, ISPASS 2020), whose simulator of caches is the reference.

use std::fmt;
use std::str::FromStr;

use super::ages::{Ages, OLDEST};
use super::{Replacement, SetState};

/// A policy of the quad-age LRU family, in which lines have ages from 0 to 3. The text form is `qlru-hXY-mZ-rN-uN` or
/// `qlru-hXY-mZ-rN-uN-umo`.
///
/// - `hXY`: a hit changes age 3 to X (0 to 2), age 2 to Y (0 or 1), and any other age to 0.
/// - `mZ`: a miss inserts its line with age Z (0 to 3).
/// - `r0`: a miss in a full set replaces the leftmost line of age 3. Other misses fill the leftmost empty way.
/// - `r1`: as `r0`, but the leftmost line is replaced where none has age 3.
/// - `r2`: as `r0`, but the rightmost empty way is filled.
/// - `u0`: after an access, all ages grow by what the largest age lacks to 3.
/// - `u1`: as `u0`, but for the other lines only. The age of the accessed line neither grows nor counts.
/// - `u2`: after an access, all ages grow by 1 if none is 3.
/// - `u3`: as `u2`, but the accessed line keeps its age.
/// - `umo`: ages grow only at a miss, before a line is replaced. No line is the accessed one then, so `u1` is `u0`, and `u3` is `u2`.
///
/// With `u2` and `u3` a miss may find no line of age 3, so they need `r1`. Where a set has one way, a miss replaces its line.
///
/// An empty way has age 3, also after the removal of its line. The simulator keeps the age of a line that was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qlru {
    /// X.
    hit_at_3: u8,
    /// Y.
    hit_at_2: u8,
    /// Z.
    insert: u8,
    /// The number after `r`.
    replace: u8,
    /// The number after `u`.
    update: u8,
    /// True for `umo`.
    update_on_miss_only: bool,
}

impl Qlru {
    /// Start of every text form.
    pub(super) const PREFIX: &'static str = "qlru-";

    #[inline]
    fn touch(self, ages: &mut Ages<'_>, way: u32) {
        let age = match ages.get(way) {
            OLDEST => self.hit_at_3,
            2 => self.hit_at_2,
            _ => 0,
        };
        ages.set(way, age);
        self.update_after_access(ages, way);
    }

    #[inline]
    fn update_after_access(self, ages: &mut Ages<'_>, way: u32) {
        if !self.update_on_miss_only {
            let spared = matches!(self.update, 1 | 3);
            let growing = if spared {
                ages.all_but(way)
            } else {
                ages.all()
            };
            self.grow(ages, growing);
        }
    }

    /// Lets ages grow by the rule of `u`.
    #[inline]
    fn grow(self, ages: &mut Ages<'_>, growing: u64) {
        if self.update < 2 {
            ages.raise(growing);
        } else if ages.oldest().is_none() {
            ages.increment(growing);
        }
    }
}

impl Replacement for Qlru {
    fn hit(&mut self, set: SetState<'_>, way: u32) {
        self.touch(&mut Ages::new(set), way);
    }

    fn insert(&mut self, set: SetState<'_>, way: u32) {
        let mut ages = Ages::new(set);
        ages.set(way, self.insert);
        self.update_after_access(&mut ages, way);
    }

    fn victim(&mut self, set: SetState<'_>) -> u32 {
        let mut ages = Ages::new(set);
        // Where the set is not full, an empty way has age 3, so no age would grow.
        if self.update_on_miss_only {
            let all = ages.all();
            self.grow(&mut ages, all);
        }
        ages.oldest().unwrap_or(0)
    }

    fn remove(&mut self, set: SetState<'_>, way: u32) {
        Ages::new(set).set(way, OLDEST);
    }

    fn empty_way(&self, empty: u64) -> u32 {
        if self.replace == 2 {
            u64::BITS - 1 - empty.leading_zeros()
        } else {
            empty.trailing_zeros()
        }
    }

    fn settled(&self, set: SetState<'_>, way: u32) -> bool {
        let mut bits = *set.bits;
        let again = SetState {
            bits: &mut bits,
            ..set
        };
        self.touch(&mut Ages::new(again), way);
        bits == *set.bits
    }
}

/// Reads the digits after a letter. Each digit is at most the one at its place in `most`.
fn digits<const N: usize>(part: &str, letter: char, most: [u8; N]) -> Option<[u8; N]> {
    let digits: [u8; N] = part.strip_prefix(letter)?.as_bytes().try_into().ok()?;
    let values = digits.map(|digit| digit.wrapping_sub(b'0'));
    let fits = values.iter().zip(most).all(|(&value, most)| value <= most);
    fits.then_some(values)
}

impl FromStr for Qlru {
    /// What is wrong with the text.
    type Err = String;

    fn from_str(text: &str) -> Result<Qlru, String> {
        let parts: Vec<&str> = text.split('-').collect();
        let (hit, insert, replace, update, update_on_miss_only) = match parts[..] {
            ["qlru", hit, insert, replace, update] => (hit, insert, replace, update, false),
            ["qlru", hit, insert, replace, update, "umo"] => (hit, insert, replace, update, true),
            _ => return Err("write \"qlru-hXY-mZ-rN-uN\", with or without \"-umo\"".to_owned()),
        };
        let wrong = |part: &str, forms: &str| format!("\"{part}\" is none of {forms}");
        let [hit_at_3, hit_at_2] = digits(hit, 'h', [2, 1])
            .ok_or_else(|| wrong(hit, "h00, h01, h10, h11, h20 and h21"))?;
        let [insert] =
            digits(insert, 'm', [3]).ok_or_else(|| wrong(insert, "m0, m1, m2 and m3"))?;
        let [replace] = digits(replace, 'r', [2]).ok_or_else(|| wrong(replace, "r0, r1 and r2"))?;
        let [update] =
            digits(update, 'u', [3]).ok_or_else(|| wrong(update, "u0, u1, u2 and u3"))?;
        if replace != 1 && update > 1 {
            return Err(format!(
                "u{update} may leave no line of age 3 for r{replace} to replace; write \"r1\""
            ));
        }
        Ok(Qlru {
            hit_at_3,
            hit_at_2,
            insert,
            replace,
            update,
            update_on_miss_only,
        })
    }
}

impl fmt::Display for Qlru {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "qlru-h{}{}-m{}-r{}-u{}",
            self.hit_at_3, self.hit_at_2, self.insert, self.replace, self.update
        )?;
        if self.update_on_miss_only {
            f.write_str("-umo")?;
        }
        Ok(())
    }
}
