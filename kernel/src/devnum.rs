//! Device numbers (`dev_t`), in Linux's encoding: a major number for a kind of device, a minor one
//! for each device of that kind.

/// The two parts of a device number.
pub const fn major_and_minor(device: u64) -> (u64, u64) {
    (
        device >> 8 & 0xfff | device >> 32 & !0xfff,
        device & 0xff | device >> 12 & !0xff & 0xffff_ffff,
    )
}

/// A device number as `stat` shows it.
pub const fn device_number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xfff) << 8 | (major & !0xfff) << 32 | minor & 0xff | (minor & !0xff) << 12
}
