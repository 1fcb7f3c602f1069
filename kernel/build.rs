//! Passes the linker script to the kernel's link; all other flags are in `.cargo/config.toml`.

fn main() {
    // Relative to the kernel's folder, where cargo runs the compiler: a copy of a built tree links
    // with its own script.
    let script = "src/boot/link.ld";
    println!("cargo:rustc-link-arg=-T{script}");
    println!("cargo:rustc-link-arg=--build-id=none");
    println!("cargo:rerun-if-changed={script}");
}
