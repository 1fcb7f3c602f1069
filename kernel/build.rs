//! Passes the linker script to the kernel's link; all other flags are in `.cargo/config.toml`.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let script = format!("{dir}/src/boot/link.ld");
    println!("cargo:rustc-link-arg=-T{script}");
    println!("cargo:rustc-link-arg=--build-id=none");
    println!("cargo:rerun-if-changed={script}");
}
