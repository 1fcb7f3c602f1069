//! libFuzzer on the target that `UVM_FUZZ_TARGET` names; its arguments are libFuzzer's.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use uvm_fuzz::Target;

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("UVM_FUZZ_TARGET").expect("UVM_FUZZ_TARGET names a target");
        uvm_fuzz::target(&name).expect("UVM_FUZZ_TARGET is the name of a target")
    })
}

fuzz_target!(|bytes: &[u8]| (chosen().run)(bytes));
