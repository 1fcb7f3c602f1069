//! Hashes of names, by which directories' indexes are ordered.

/// What hashes begin with on a volume that has no seed.
const SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// The highest hash stands for a listing's end.
const END: u32 = 0xffff_fffe;

/// The hash of a name, and what tells names of one hash apart. Versions are those of the index:
/// legacy, half of MD4, TEA; and each of them with unsigned characters.
pub(crate) fn hash(name: &[u8], version: u8, seed: &[u32; 4]) -> (u32, u32) {
    let mut state = if *seed == [0; 4] { SEED } else { *seed };
    let is_signed = version < 3;
    let (hash, minor) = match version % 3 {
        0 => (legacy(name, is_signed), 0),
        1 => {
            for part in tails(name, 32) {
                half_md4(&mut state, &words(part, is_signed));
            }
            (state[1], state[2])
        }
        _ => {
            for part in tails(name, 16) {
                tea(&mut state, &words(part, is_signed));
            }
            (state[0], state[1])
        }
    };
    let hash = hash & !1;
    (if hash == END { END - 2 } else { hash }, minor)
}

/// What is left of a name before each part.
fn tails(name: &[u8], part: usize) -> impl Iterator<Item = &[u8]> {
    (0..name.len()).step_by(part).map(|at| &name[at..])
}

fn character(byte: u8, is_signed: bool) -> u32 {
    if is_signed {
        byte as i8 as u32
    } else {
        byte.into()
    }
}

fn legacy(name: &[u8], is_signed: bool) -> u32 {
    let (mut hash, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mixed = hash ^ character(byte, is_signed).wrapping_mul(7_152_373);
        let mut next = before.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, hash) = (hash, next);
    }
    hash << 1
}

/// The first characters of what is left of a name as words; the rest is filled with its length.
fn words<const N: usize>(left: &[u8], is_signed: bool) -> [u32; N] {
    let len = left.len() as u32;
    let fill = len | len << 8;
    let fill = fill | fill << 16;
    let mut words = [fill; N];
    for (word, part) in words.iter_mut().zip(left.chunks(4)) {
        *word = part
            .iter()
            .fold(fill, |word, &byte| (word << 8).wrapping_add(character(byte, is_signed)));
    }
    words
}

fn tea(state: &mut [u32; 4], input: &[u32; 4]) {
    let (mut a, mut b, mut sum) = (state[0], state[1], 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        a = a.wrapping_add(
            (b << 4).wrapping_add(input[0]) ^ b.wrapping_add(sum) ^ (b >> 5).wrapping_add(input[1]),
        );
        b = b.wrapping_add(
            (a << 4).wrapping_add(input[2]) ^ a.wrapping_add(sum) ^ (a >> 5).wrapping_add(input[3]),
        );
    }
    state[0] = state[0].wrapping_add(a);
    state[1] = state[1].wrapping_add(b);
}

/// Three rounds of MD4's functions over eight words: in which order each takes them, what it adds,
/// and by how much it rotates.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, [usize; 8], u32, [u32; 4]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), [0, 1, 2, 3, 4, 5, 6, 7], 0, [3, 7, 11, 19]),
        (
            |x, y, z| (x & y).wrapping_add((x ^ y) & z),
            [1, 3, 5, 7, 0, 2, 4, 6],
            0x5a82_7999,
            [3, 5, 9, 13],
        ),
        (|x, y, z| x ^ y ^ z, [3, 7, 2, 6, 1, 5, 0, 4], 0x6ed9_eba1, [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, order, constant, shifts) in ROUNDS {
        for (n, at) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[at]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[n % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `debugfs -R "dx_hash -h VERSION NAME"` says, without a seed.
    #[test]
    fn hashes_are_those_of_debugfs() {
        let name = "a name that is longer than one part of any hash".as_bytes();
        let found = [0, 1, 2].map(|version| hash(name, version, &[0; 4]));
        assert_eq!(
            found,
            [(0x1fa9_5112, 0), (0x04ad_1376, 0xdd09_2b59), (0xb93a_9412, 0x0ba5_0385)]
        );
    }
}
