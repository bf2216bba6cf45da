//! Other hosts: the guest state is not available to call-backs.

/// Defines a call-back that calls `$body` with 0 instead of the guest state.
macro_rules! with_state {
    ($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty),+) in $register:literal, $body:ident) => {
        $(#[$about])*
        pub(crate) extern "C" fn $name($($argument: $kind),+) {
            $body($($argument),+, 0);
        }
    };
}
pub(super) use with_state;
