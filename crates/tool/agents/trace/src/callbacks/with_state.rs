//! x86-64 hosts: QEMU's code keeps the guest state in rbp.

/// Defines a call-back that calls `$body` with the guest state as additional argument, in
/// `$register`.
macro_rules! with_state {
    ($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty),+) in $register:literal, $body:ident) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub(crate) extern "C" fn $name($($argument: $kind),+) {
            std::arch::naked_asm!(concat!("mov ", $register, ", rbp"), "jmp {body}", body = sym $body)
        }
    };
}
pub(super) use with_state;
