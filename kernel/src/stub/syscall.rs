use crate::arch::UserRegs;
pub fn dispatch(regs: &mut UserRegs) {
    crate::proc::syscall(regs)
}
